"""Live parameters read back in vLLM's layout: fused, padded, and what cannot be read."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from services.inference.engines.vllm.readback import differing


class Fused(nn.Module):
    """Laid out as vLLM does: three projections in one, and an embedding with spare rows."""

    packed_modules_mapping: ClassVar = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self, tensors: dict[str, Tensor], spare: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(5 + spare, 4)
        self.layer = nn.Module()
        self.layer.qkv_proj = nn.Linear(4, 8, bias=False)
        with torch.no_grad():
            self.embed.weight[:5] = tensors["embed.weight"]
            parts = [tensors[f"layer.{part}_proj.weight"] for part in "qkv"]
            self.layer.qkv_proj.weight.copy_(torch.cat(parts))


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = {"embed": 5, "layer.q_proj": 4, "layer.k_proj": 2, "layer.v_proj": 2}
    return {f"{n}.weight": torch.randn(r, 4, generator=generator) for n, r in rows.items()}


def test_what_was_loaded_does_not_differ(tensors: dict[str, Tensor]) -> None:
    assert differing(Fused(tensors), tensors) == []


@pytest.mark.parametrize("name", ["embed", "layer.q_proj", "layer.k_proj", "layer.v_proj"])
def test_one_value_that_is_not_live_is_named(tensors: dict[str, Tensor], name: str) -> None:
    model = Fused(tensors)
    tensors[f"{name}.weight"][-1, -1] += 1
    assert differing(model, tensors) == [f"{name}.weight"]


def test_a_layout_that_does_not_tell_is_none(tensors: dict[str, Tensor]) -> None:
    model = Fused(tensors)
    model.layer.qkv_proj.weight.data = torch.empty(0)  # packed for a processor
    assert differing(model, tensors) is None
    lacking = {n: t for n, t in tensors.items() if "embed" not in n}
    assert differing(Fused(tensors), lacking) is None
    assert differing(Fused(tensors), tensors | {"more.weight": torch.ones(1)}) is None
    half = {n: t.half() for n, t in tensors.items()}
    assert differing(Fused(tensors), half) is None

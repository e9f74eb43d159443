"""Live parameters of a vLLM model against the tensors that they were loaded from. † torch

Only where vLLM keeps them as they came: not quantised, not split over workers, not packed anew for
a processor. Fused ones are compared slice by slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def differing(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str] | None:
    """The names of the tensors that are not live, or None where the layout does not tell.

    A parameter of which no tensor speaks cannot be told either, nor a tensor without a parameter.
    """
    live = dict(model.named_parameters())
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    differs, seen = [], set()
    for name, parameter in live.items():
        parts = [part for part in _parts(name, packed) if part in tensors]
        if not parts or not _covers(parameter, [tensors[part] for part in parts]):
            return None
        start = 0
        for part in parts:
            size = tensors[part].shape[0]
            if not _equal(parameter.data[start : start + size], tensors[part]):
                differs.append(part)
            start += size
            seen.add(part)
    return None if tensors.keys() - seen else differs


def _parts(name: str, packed: Mapping[str, list[str]]) -> list[str]:
    """The names in a checkpoint of what vLLM has under one name, in their order."""
    for fused, parts in packed.items():
        if f".{fused}." in name:
            return [name.replace(f".{fused}.", f".{part}.") for part in parts]
    return [name]


def _covers(parameter: Tensor, parts: list[Tensor]) -> bool:
    """Whether these, below each other, are the parameter; an embedding may be padded."""
    rows = sum(part.shape[0] if part.dim() else 1 for part in parts)
    alike = all(p.dim() and p.shape[1:] == parameter.shape[1:] for p in parts)
    whole = parameter.shape[0] if parameter.dim() else 1
    return alike and all(p.dtype == parameter.dtype for p in parts) and rows <= whole


def _equal(live: Any, tensor: Tensor) -> bool:
    return torch.equal(live, tensor.to(live.device))

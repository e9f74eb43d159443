"""A model's weights with its adapters added in, under the names that it has without any. † torch

Reads live modules and changes none of them. What an adapter is, is in `lora`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

_INSIDE = ".base_layer"
_ADAPTERS = ("lora_A", "lora_B")


def has_adapters(model: Any) -> bool:
    """Whether some of its layers have one."""
    return any(True for _ in _adapted(model))


def merged(model: Any) -> dict[str, Tensor]:
    """W + s BA of each layer with an adapter, and all else as it is, by name; each in W's dtype."""
    changes = {
        f"{name}.weight": layer.get_delta_weight("default") for name, layer in _adapted(model)
    }
    plain = {
        name.replace(_INSIDE, ""): tensor
        for name, tensor in model.state_dict().items()
        if not any(part in name for part in _ADAPTERS)
    }
    return {
        name: (tensor + changes[name].to(tensor.dtype)) if name in changes else tensor
        for name, tensor in plain.items()
    }


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    return (
        (name, module) for name, module in model.named_modules() if hasattr(module, "base_layer")
    )

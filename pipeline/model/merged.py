"""A model's weights with its adapters added in, under the names that it has without any. † torch

Reads live modules and changes none of them. What an adapter is, is in `lora`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

_INSIDE = ".base_layer"
_ADAPTERS = ("lora_A", "lora_B")


def has_adapters(model: Any) -> bool:
    """Whether some of its layers have one."""
    return any(True for _ in _adapted(model))


def merged(model: Any, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """W + s BA of each layer with an adapter, and all else as it is, by name; each in W's dtype.

    `tensors` are the model's, all of them, where its own are not whole or may change meanwhile.
    """
    own = model.state_dict() if tensors is None else tensors
    changes = {f"{name}.weight": _change(layer, name, own) for name, layer in _adapted(model)}
    plain = {
        name.replace(_INSIDE, ""): tensor
        for name, tensor in own.items()
        if not any(part in name for part in _ADAPTERS)
    }
    return {
        name: (tensor + changes[name].to(tensor.dtype)) if name in changes else tensor
        for name, tensor in plain.items()
    }


def _change(layer: Any, name: str, own: Mapping[str, Tensor]) -> Tensor:
    """s BA, turned where the layer keeps its weight the other way round."""
    a, b = (own[f"{name}.{part}.default.weight"] for part in _ADAPTERS)
    product = (b @ a).T if layer.fan_in_fan_out else b @ a
    return product * float(layer.scaling["default"])


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    return (
        (name, module) for name, module in model.named_modules() if hasattr(module, "base_layer")
    )

"""Low-rank adapters on a model whose own weights are frozen: what is trained, and travels. † torch

Both sides of a log-prob run the same modules, y = Wx + s B(Ax), so that nothing is ever merged into
a live weight and none can drift. How they become one whole model is in `merged`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from msgspec import Meta
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from pipeline.errors import ConfigError

AT = "model.adapter"
EVERY_LINEAR = "all-linear"


def lora(
    model: Any,
    *,
    rank: Annotated[int, Meta(ge=1)] = 16,
    alpha: Annotated[float, Meta(gt=0)] = 32.0,
    rslora: bool = False,
    targets: list[str] | None = None,
) -> Any:
    """The model with adapters of this rank in its linear layers, its own parameters frozen.

    Hu et al., 2021: s = alpha / rank; with `rslora` alpha / sqrt(rank) (Kalajdzievski, 2023), so
    that a higher rank does not learn more slowly. `targets` are the layers' names ("q_proj"), all
    but the head by default. There is no dropout: the policy that is trained would be another than
    the one that was sampled. B starts at 0, A alike on every machine. Raises ConfigError.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number is multiplied
        use_rslora=rslora,
        target_modules=targets or EVERY_LINEAR,
        init_lora_weights=False,
    )
    dtype = model.dtype
    try:
        inject_adapter_in_model(config, model)
    except ValueError as exc:
        remedy = "name linear layers of the model, or leave it out for all of them"
        said = str(exc).partition(". ")[0]
        raise ConfigError(f"{AT}.targets", targets, rule=said, remedy=remedy) from exc
    _begin([(n, p) for n, p in model.named_parameters() if p.requires_grad], dtype)
    model.train(False)
    return model


def _begin(adapters: list[tuple[str, nn.Parameter]], dtype: torch.dtype) -> None:
    """A uniform as a linear layer's weight is at first, B 0: the policy is the model's."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(adapters, key=lambda pair: pair[0]):
        drawn = torch.zeros(parameter.shape)
        if "lora_A" in name:
            bound = 1 / math.sqrt(parameter.shape[-1])
            drawn = _uniform(drawn, bound, generator)
        parameter.data = drawn.to(parameter.device, dtype)


def _uniform(out: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    return out.uniform_(-bound, bound, generator=generator)

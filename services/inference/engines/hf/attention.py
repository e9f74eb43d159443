"""What one decode token may attend to, and how its attention is computed.

Rows differ in length and their keys start at 0, so a row's mask is its own length; the models'
own masks assume that all rows end together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.errors import ConfigError

_FOLDED = "sdpa_folded"
_KINDS = {"full_attention", "sliding_attention"}

Mask = Tensor | dict[str, Tensor]


class Masks:
    """Additive masks [n, 1, 1, L] of a decode pass: 0 where a row may look, else -inf."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises ConfigError for layers whose state is no keys and values."""
        config = model.config.get_text_config()
        self._kinds = set(getattr(config, "layer_types", None) or ())
        self._window: int | None = getattr(config, "sliding_window", None)
        self._dtype = model.dtype
        if odd := self._kinds - _KINDS:
            raise ConfigError(
                "inference.engine",
                "hf",
                rule=f"cannot run layers of kind {', '.join(sorted(odd))}",
                remedy='choose a decoder with ordinary attention, or another engine ("vllm")',
            )

    def make(self, positions: Tensor, length: int) -> Mask:
        """For one token a row at `positions` [n], among `length` keys."""
        keys = torch.arange(length, device=positions.device)
        ahead = keys > positions[:, None]
        if self._kinds == {"full_attention"} or self._window is None:
            return self._additive(ahead)
        sliding = self._additive(ahead | (keys <= positions[:, None] - self._window))
        if not self._kinds:
            return sliding
        return {"full_attention": self._additive(ahead), "sliding_attention": sliding}

    def _additive(self, hidden: Tensor) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
        return mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]


def fold_heads(model: PreTrainedModel) -> None:
    """Have `model` compute grouped-query attention without copying its keys, where it uses sdpa."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(_FOLDED)


def _folded(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one token a row, its query heads [B, H, 1, D] folded into [B, kv_heads, G, D].

    The heads that share a key see the same mask, so they can stand where several tokens would.
    """
    batch, heads, tokens, width = query.shape
    if tokens > 1 or attention_mask is None or attention_mask.shape[1] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    output = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], -1, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=kwargs.get("scaling"),
    )
    return output.reshape(batch, 1, heads, -1), None


ALL_ATTENTION_FUNCTIONS.register(_FOLDED, _folded)
ALL_MASK_ATTENTION_FUNCTIONS.register(_FOLDED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

"""Attention that stays within each sequence of a packed row, and costs what they cost. † torch

transformers hides packed sequences from each other by a mask [T, T], and most of what is computed
under it is thrown away. Here each sequence attends by itself, so that a row costs the sum of its
sequences' squares, and no mask of the whole row is ever made. For models whose attention is sdpa.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

APART = "sluice_apart"
"""As transformers knows it."""
ROWS = 1024
"""Of a mask that is looked at and not kept."""


class Block(NamedTuple):
    """A sequence of a row: its tokens, and the mask [1, 1, l, l] among them; None: causal."""

    length: int
    mask: Tensor | None


class Blocks(tuple[Block, ...]):
    """All of a row, in order: what a layer gets instead of a mask."""


def attend_apart(model: Any) -> None:
    """Let a model attend so, where it attends by sdpa; others are left as they are."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(APART)


def blocks(*, mask_function: Callable[..., Tensor], device: Any = "cpu", **asked: Any) -> Any:
    """The blocks of a row, or a mask as sdpa takes it where this is not one row to train on.

    A sequence begins where a token does not see the one before it: so the blocks are exact for any
    causal mask, with a sliding window, too.
    """
    tokens = asked["q_length"]
    is_row = asked["batch_size"] == 1 and asked["kv_length"] == tokens
    if not is_row or asked.get("attention_mask") is not None or asked.get("use_vmap"):
        return sdpa_mask(mask_function=mask_function, device=device, **asked)
    at = torch.arange(1, tokens, device=device)
    first = torch.zeros_like(at)
    starts = (~mask_function(first, first, at, at - 1)).nonzero().flatten() + 1
    edges = [0, *starts.tolist(), tokens]
    return Blocks(
        _block(mask_function, start, stop - start, device) for start, stop in pairwise(edges)
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **options: Any,
) -> tuple[Tensor, None]:
    """Queries [B, H, T, D], keys and values of as many heads or fewer, to [B, T, H, D]."""
    if not isinstance(attention_mask, Blocks):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    groups = query.shape[1] // key.shape[1]
    lengths = [block.length for block in attention_mask]
    parts = [
        scaled_dot_product_attention(
            q, k, v, block.mask, is_causal=block.mask is None, scale=options.get("scaling")
        )
        for block, q, k, v in zip(
            attention_mask,
            torch.split(query, lengths, dim=2),
            torch.split(repeat_kv(key, groups), lengths, dim=2),
            torch.split(repeat_kv(value, groups), lengths, dim=2),
            strict=True,
        )
    ]
    return torch.cat([part.transpose(1, 2) for part in parts], dim=1), None


def _block(mask_function: Callable[..., Tensor], start: int, length: int, device: Any) -> Block:
    if _is_causal(mask_function, torch.arange(start, start + length, device=device)):
        return Block(length, None)
    mask = sdpa_mask(
        batch_size=1,
        q_length=length,
        kv_length=length,
        q_offset=start,
        kv_offset=start,
        mask_function=mask_function,
        allow_is_causal_skip=False,
        device=device,
    )
    assert mask is not None
    return Block(length, mask)


def _is_causal(mask_function: Callable[..., Tensor], at: Tensor) -> bool:
    """Whether each of these tokens [l] sees itself, those before it, and no other.

    Some rows at a time: of a long sequence [l, l] alone would be gigabytes.
    """
    first = at.new_zeros(())
    return all(
        torch.equal(mask_function(first, first, rows[:, None], at), at <= rows[:, None])
        for rows in torch.split(at, ROWS)
    )


AttentionInterface.register(APART, attend)
AttentionMaskInterface.register(APART, blocks)

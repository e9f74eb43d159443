"""Ratios of two policies, by token and by sequence, for losses, corrections and statistics. † torch

Nothing here is infinite or not a number for log-probs that are finite. Sequences are those of the
pack, of which one row has many; a sequence's tokens stand together in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.protocols import Tokens
from services.training.ranges import Over

MAX_LOG_RATIO = 20.0


def clamped(gap: Tensor) -> Tensor:
    """A log-ratio [T] within +-20; beyond that it has no gradient."""
    return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio(logp: Tensor, anchor: Tensor) -> Tensor:
    """r = exp(logp - anchor) [T], the difference clamped to +-20 so that no exp overflows."""
    return clamped(logp - anchor).exp()


def total(values: Tensor, tokens: Tokens, over: Over = "sequence") -> Tensor:
    """[T] to [T]: at each token the sum over its sequence's tokens inside the loss."""
    lengths = _lengths(tokens, over)
    kept = torch.where(tokens.weight > 0, values, torch.zeros_like(values))
    return _reduced(kept, "sum", lengths)


def mean(values: Tensor, tokens: Tokens, over: Over = "sequence") -> Tensor:
    """[T] to [T]: at each token the mean over its sequence's tokens inside the loss, 0 for none."""
    return total(values, tokens, over) / count(tokens, over).to(values.dtype)


def count(tokens: Tokens, over: Over = "sequence") -> Tensor:
    """[T]: at each token how many of its sequence are inside the loss; 1 where none is."""
    return total(torch.ones_like(tokens.weight), tokens, over).clamp(min=1)


def largest(values: Tensor, tokens: Tokens, over: Over = "sequence") -> Tensor:
    """[T], none below 0, to [T]: the largest of its sequence's tokens inside the loss."""
    kept = torch.where(tokens.weight > 0, values, torch.zeros_like(values))
    return _reduced(kept, "max", _lengths(tokens, over))


def _lengths(tokens: Tokens, over: Over) -> Tensor:
    key = tokens.sequence
    if over == "segment" and key.numel():
        key = key * (tokens.segment.max() + 1) + tokens.segment
    lengths: Tensor = torch.unique_consecutive(key, return_counts=True)[1]
    return lengths


def _reduced(values: Tensor, how: str, lengths: Tensor) -> Tensor:
    """By stretches of these lengths, in an order of its own on any device: bits can be replayed."""
    if not values.numel():
        return values
    found: Tensor = torch.segment_reduce(values, how, lengths=lengths).repeat_interleave(lengths)
    return found

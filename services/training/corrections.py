"""Corrections for tokens that another policy sampled: `Tokens` to a weight per token [T]. † torch

For a loss that is anchored at the trainer's own policy before the step: l = anchor - behaviour is
then the gap that the loss does not see. One that is anchored at the behaviour policy has the gap in
its ratio, and a correction on top is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from pipeline.protocols import Tokens
from services.training.losses import ratio


def none(tokens: Tokens) -> Tensor:
    """1."""
    return torch.ones_like(tokens.logp)


def tis(
    tokens: Tokens,
    *,
    level: Literal["token", "geometric"] = "token",
    cap: Annotated[float, Meta(gt=0)] = 2.0,
) -> Tensor:
    """Truncated importance sampling (Yao et al., 2025): min(exp l, cap).

    `geometric` takes the mean of l over the tokens of the sequence that are inside the loss.
    """
    gap = tokens.anchor.detach() - tokens.behaviour
    if level == "geometric":
        gap = sequence_mean(gap, tokens)
    return ratio(gap, torch.zeros_like(gap)).clamp(max=cap)


def sequence_mean(values: Tensor, tokens: Tokens) -> Tensor:
    """[T] to [T]: at each token the mean over its sequence's tokens inside the loss, 0 for none."""
    _, sequence = torch.unique(tokens.sequence, return_inverse=True)
    inside = (tokens.weight > 0).to(values.dtype)
    sums, counts = (
        torch.zeros_like(values).index_add(0, sequence, column)
        for column in (values * inside, inside)
    )
    return (sums / counts.clamp(min=1))[sequence]

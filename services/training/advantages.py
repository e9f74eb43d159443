"""Advantages of one group: rewards [n] of its members that have one, to advantages [n]. † torch

Shapes only; which members belong to a group and have a reward is known in `considered`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from torch import Tensor

FLAT = 1e-6


def flat(values: Tensor) -> bool:
    """Whether values [n] say nothing: a singleton, or std < 1e-6 max(1, |mean|)."""
    if values.numel() < 2:
        return True
    return bool(values.std() < FLAT * values.mean().abs().clamp(min=1))


def grpo(rewards: Tensor, *, epsilon: Annotated[float, Meta(ge=0)] = 1e-6) -> Tensor:
    """(R - mean) / (std + epsilon) with std over n - 1 (Shao et al., 2024); 0 where flat."""
    if flat(rewards):
        return rewards * 0
    return (rewards - rewards.mean()) / (rewards.std() + epsilon)


def dr_grpo(rewards: Tensor) -> Tensor:
    """R - mean (Liu et al., 2025)."""
    return rewards - rewards.mean()


def rloo(rewards: Tensor) -> Tensor:
    """R - the mean of the others = n/(n - 1) (R - mean) (Ahmadian et al., 2024); 0 for n = 1."""
    n = rewards.numel()
    return (rewards - rewards.mean()) * (n / max(1, n - 1))

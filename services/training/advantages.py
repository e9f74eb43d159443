"""Advantages of one group: rewards [n] of its members that have one, to advantages [n]. † torch

Shapes only; which members belong to a group and have a reward is known in `considered`. What an
advantage makes of a whole batch, or keeps from one to the next, is in `baselines`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from torch import Tensor

from pipeline.errors import Unusable

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


def max_rl(rewards: Tensor) -> Tensor:
    """(R - mean) / mean for rewards of 0 or more (maximum-likelihood RL, 2026); 0 where all are 0.

    Raises Unusable for a reward below 0: a mean near 0 between both signs has no meaning here.
    """
    if (rewards < 0).any():
        raise Unusable(
            "objective.advantage",
            "max_rl",
            rule=f"is for rewards of 0 or more, and a scorer gave {rewards.min().item():g}",
            remedy="choose another advantage, or scorers that add nothing below 0",
        )
    mean = rewards.mean()
    return (rewards - mean) / mean if mean > 0 else rewards * 0


def none(rewards: Tensor) -> Tensor:
    """R itself (REINFORCE without a baseline); for groups of one, too."""
    return rewards


none.compares = False  # type: ignore[attr-defined]


def compares(advantage: object) -> bool:
    """Whether members whose outcomes are alike have nothing to be learnt from.

    One that says otherwise has an attribute `compares = False`; behind bound options as well.
    """
    return bool(getattr(getattr(advantage, "func", advantage), "compares", True))

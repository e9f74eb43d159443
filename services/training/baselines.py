"""Advantages that depend on more than their group: on the batch, or on the batches before. † torch

Both stages are from rewards alone, and made when a batch is built, so that a group that is judged
again, or replayed, has the same bits. Those of one group are in `advantages`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from pipeline.protocols import Graded
from services.training.advantages import dr_grpo, flat
from services.training.remembered import Memory


class ReinforcePP:
    """R - group mean, then centred and scaled over the batch (REINFORCE++-baseline, Hu, 2025).

    Over the members that have a reward, with the std over n - 1; all 0 where they are flat.
    """

    def __init__(self, *, epsilon: Annotated[float, Meta(ge=0)] = 1e-6) -> None:
        """`epsilon` is added to the std."""
        self._epsilon = epsilon

    def __call__(self, rewards: Tensor) -> Tensor:
        """The first stage: rewards [n] of a group to [n]."""
        return dr_grpo(rewards)

    def over_batch(self, groups: Sequence[Graded]) -> list[Tensor]:
        """The second: values of every group of the batch to its advantages."""
        if not groups:
            return []
        every = torch.cat([one.values for one in groups])
        if flat(every):
            return [one.values * 0 for one in groups]
        mean, scale = every.mean(), every.std() + self._epsilon
        return [(one.values - mean) / scale for one in groups]


class Ema:
    """R - the running mean of the task's rewards; for groups of one.

    A task that is new begins at the mean of its first batch. The mean moves once a batch, after the
    step was tried: decay * mean + (1 - decay) * the batch's mean of that task.
    """

    compares = False

    def __init__(self, *, decay: Annotated[float, Meta(ge=0, lt=1)] = 0.95) -> None:
        """`decay` is what is left of a mean after one batch."""
        self._decay = decay
        self._means: dict[str, float] = {}

    def __call__(self, rewards: Tensor) -> Tensor:
        """The first stage leaves rewards [n] as they are."""
        return rewards

    def over_batch(self, groups: Sequence[Graded]) -> list[Tensor]:
        """The second: rewards of every group of the batch to its advantages; moves nothing."""
        means = _by_task(groups) | self._means
        return [one.values - means[one.task] if len(one.values) else one.values for one in groups]

    def observe(self, groups: Sequence[Graded]) -> None:
        """The batch was stepped on: its rewards count from the next one on."""
        for task, mean in _by_task(groups).items():
            former = self._means.get(task, mean)
            self._means[task] = self._decay * former + (1 - self._decay) * mean

    def memory(self) -> Memory:
        """As the protocol says."""
        return Memory({"means": dict(self._means)}, {})

    def recall(self, memory: Memory) -> None:
        """As the protocol says."""
        self._means = {task: float(mean) for task, mean in memory.plain["means"].items()}


def _by_task(groups: Sequence[Graded]) -> dict[str, float]:
    values: defaultdict[str, list[Tensor]] = defaultdict(list)
    for one in groups:
        if len(one.values):
            values[one.task].append(one.values)
    return {task: float(torch.cat(of).mean()) for task, of in values.items()}

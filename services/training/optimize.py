"""One optimizer step: a batch in, new weights and what is known of the step out. † torch

What a step does to the run, on the bus and on disk, is in `service`; which rank does which part of
it, in `ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.protocols import Observes, Pack, Rank, StepResult
from services.training.batch import Batch
from services.training.considered import skipped
from services.training.objective import Objective
from services.training.records import Record
from services.training.statistics import Statistics


class Done(NamedTuple):
    """What became of packs that were stepped on."""

    result: StepResult
    statistics: Statistics


Act = Callable[[Batch, Record, float], Done]
"""Gradients over a batch, from the cargo in its record; then one step at this learning rate."""


class Step(NamedTuple):
    """A step that was tried. The fates of its batch tell whether it was taken."""

    batch: Batch
    learning_rate: float
    result: StepResult
    statistics: Statistics


class Optimizer:
    """Turns batches into steps."""

    def __init__(self, act: Act, *, rate: Callable[[int], float]) -> None:
        """`rate` is the learning rate of a batch, counted from 1."""
        self._act, self._rate = act, rate

    def step(self, batch: Batch, record: Record) -> Step:
        """One step on the batch that was recorded.

        Skipped steps are numbered as well, so they move the schedule of the learning rate on. An
        advantage that remembers is told of each batch, whatever came of the step.
        """
        rate = self._rate(record.batch)
        result, statistics = self._act(batch, record, rate)
        if isinstance(batch.rules.advantage, Observes):
            batch.rules.advantage.observe(batch.graded)
        if not result.finite:
            batch = batch._replace(fates=skipped(batch.fates))
        return Step(batch, rate, result, statistics)


def as_it_is(rows: Tensor) -> Tensor:
    """The rows of all ranks, where there is one."""
    return rows


def act_alone(
    rank: Rank,
    objective: Objective,
    packs: Sequence[Pack],
    rate: float,
    *,
    gathered: Callable[[Tensor], Tensor] = as_it_is,
) -> Done:
    """The part of a step that one rank does, which is all of it where there is one.

    `gathered` gives the rows of all ranks for this one's; it is called at once by all of them.
    """
    packs = [objective.refer(pack) for pack in packs] if objective.refer else packs
    objective = told(rank, objective, packs, gathered=gathered)
    statistics = Statistics(objective)
    for pack in packs:
        rank.backward(pack, partial(objective, pack))
        statistics.add(pack, rank.last)
    return Done(rank.step(rate), statistics)


def told(
    rank: Rank,
    objective: Objective,
    packs: Sequence[Pack],
    *,
    gathered: Callable[[Tensor], Tensor] = as_it_is,
) -> Objective:
    """The objective of this step; where it depends on the whole of it, after a look at all.

    A step has packs on all ranks or on none.
    """
    if not objective.wide or not packs:
        return objective
    looks = [objective.look(pack, rank.logprobs(pack)) for pack in packs]
    return objective.told([gathered(torch.cat(rows)) for rows in zip(*looks, strict=True)])


def learning_rate(number: int, *, peak: float, warmup_steps: int) -> float:
    """Of batch `number`, counted from 1: a linear warm-up that does not begin at 0, then `peak`."""
    return peak * min(1.0, number / (warmup_steps + 1))

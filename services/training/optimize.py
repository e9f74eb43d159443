"""One optimizer step: a batch in, new weights and what is known of the step out. † torch

What a step does to the run, on the bus and on disk, is in `service`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pipeline.protocols import Backend, Loss, StepResult
from services.training.batch import Batch
from services.training.considered import skipped
from services.training.objective import Objective
from services.training.statistics import Statistics


class Step(NamedTuple):
    """A step that was tried. The fates of its batch tell whether it was taken."""

    batch: Batch
    learning_rate: float
    result: StepResult
    statistics: Statistics


class Optimizer:
    """Turns batches into steps."""

    def __init__(self, backend: Backend, loss: Loss, *, rate: Callable[[int], float]) -> None:
        """`rate` is the learning rate of a step, counted from 1."""
        self._backend, self._objective, self._rate = backend, Objective(loss), rate

    def step(self, batch: Batch, *, number: int) -> Step:
        """Gradients over all packs, then one step; `number` counts from 1."""
        statistics = Statistics(self._objective.loss)
        for pack in batch.packs:
            self._backend.backward(pack, partial(self._objective, pack))
            statistics.add(pack, self._backend.last)
        rate = self._rate(number)
        result = self._backend.step(rate)
        if not result.finite:
            batch = batch._replace(fates=skipped(batch.fates))
        return Step(batch, rate, result, statistics)


def learning_rate(number: int, *, peak: float, warmup_steps: int) -> float:
    """Of step `number`, counted from 1: a linear warm-up whose first step is not 0, then `peak`."""
    return peak * min(1.0, number / (warmup_steps + 1))

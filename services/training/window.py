"""How many groups may be alive, steered by what their lag does to a step. Pure.

The bus holds the window in force; who admits obeys it. What a step consumes does not depend on it
otherwise, so a replay needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from pipeline.run import Control

BACK_OFF = 0.75
DEAD_BAND = 0.02
"""Of the target: a measure within it on the good side is left alone."""


class Window:
    """Additive increase, multiplicative decrease (Chiu and Jain 1989), once a turn of the window.

    Too much lag shows only once groups admitted since the last change are trained: after as many
    steps as the window holds. So the measure is averaged over that many, and the window then moved
    at most once: down by a quarter of itself where it misses its target, up by one step's groups
    where it does better than the target by more than a dead band, and else not. Decrease must
    outrun increase, or a loop with such a delay grows swings; the band keeps noise from moving it.

    What it has averaged is forgotten with its process, which only makes the next move later.
    """

    def __init__(self, control: Control, *, per_step: int, lag_max: int) -> None:
        """It stays between `control.least` steps of groups and `lag_max` + 1."""
        self._control, self._per_step = control, per_step
        self._most = (lag_max + 1) * per_step
        self._least = min(control.least * per_step, self._most)
        self._seen: list[float] = []

    def after(self, window: int, line: Mapping[str, Any]) -> int:
        """The window that follows `window` after a step with this line of metrics.jsonl."""
        value = float(line[self._control.measure])
        if not line["finite"] or not math.isfinite(value):
            return self._bounded(window)
        self._seen.append(value)
        if len(self._seen) < -(-window // self._per_step):
            return self._bounded(window)
        mean, self._seen = fmean(self._seen), []
        return self._bounded(self._moved(window, mean))

    def _moved(self, window: int, mean: float) -> int:
        target, sign = self._control.target, 1 if self._control.measure == "ess" else -1
        spare = sign * (mean - target)
        if spare < 0:
            return int(window * BACK_OFF)
        return window + self._per_step if spare > DEAD_BAND * target else window

    def _bounded(self, window: int) -> int:
        return max(self._least, min(self._most, window))

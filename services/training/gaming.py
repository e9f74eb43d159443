"""What the last steps come to where a reward is being gamed: means, and how it left its shadows.

What each of them shows is in `signs`; from where on it is told, in `pipeline.watch.gaming`.
Torch-free.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.watch.gaming import AMONG, Signs

WINDOW_STEPS = 50
LEAST_STEPS = 10
"""Of those in the window that say something: over fewer nothing is told. A policy that finds a way
to cheat may need but twenty steps to do nothing else."""
LEAST_FREEDOM = 100
"""Of all correlations in the window: then what is by chance stays below 0.3."""
BLOCK_STEPS = 10
MOST_ERRORS = 99.0
"""Standard errors; where there is no noise they would be without bound."""
LEAST_ERROR = 1e-9
"""In place of a standard error of 0."""


class Gaming:
    """Means over the last steps, and for each shadow how it and the reward went apart.

    It is told each line of metrics.jsonl once, those of trainers before this one as well.
    """

    def __init__(self) -> None:
        self._length = Window(LEAST_FREEDOM)
        self._repeated = {among: Window() for among in AMONG}
        self._trends: dict[str, Trend] = {}

    def observe(self, line: Mapping[str, Any]) -> None:
        """One step; a line of an earlier release says nothing."""
        self._length.add(line.get("length_correlation"), line.get("length_freedom", 0))
        for among, window in self._repeated.items():
            window.add(line.get("repeated", {}).get(among))
        for name, one in line.get("shadow", {}).items():
            self._trends.setdefault(name, Trend()).add(one["reward"], one["shadow"])

    def signs(self) -> Signs:
        """As they stand; correlations are weighed by their degrees of freedom."""
        return Signs(
            length=self._length.mean(),
            repeated={among: window.mean() for among, window in self._repeated.items()},
            divergence={name: trend.divergence for name, trend in self._trends.items()},
        )


class Window:
    """A figure of the last steps, of those that have it."""

    def __init__(self, least: float = LEAST_STEPS) -> None:
        """`least` is what their weights come to at least, before anything is said."""
        self._least = least
        self._steps: deque[tuple[float | None, float]] = deque(maxlen=WINDOW_STEPS)

    def add(self, value: float | None, weight: float = 1.0) -> None:
        """That of one more step; None where it has none."""
        self._steps.append((value, weight))

    def mean(self) -> float | None:
        """By weight; None while too few of the steps have a value."""
        known = [(value, weight) for value, weight in self._steps if value is not None]
        if len(known) < LEAST_STEPS or sum(weight for _, weight in known) < self._least:
            return None
        return fmean([value for value, _ in known], [weight for _, weight in known])


class _Block(NamedTuple):
    """Means over some steps, and the squares of their standard errors."""

    reward: float
    reward_error: float
    shadow: float
    shadow_error: float


class Trend:
    """How a reward and its shadow went since the shadow was at its best, block by block of steps.

    An honest reward takes its shadow along; of one that is optimised too far the shadow has its
    best behind it (Gao et al., 2022, Scaling laws for reward model overoptimization).
    """

    def __init__(self) -> None:
        self.divergence: float | None = None
        self._rewards: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._shadows: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._steps, self._best = 0, _Block(0.0, 0.0, -math.inf, 0.0)

    def add(self, reward: float, shadow: float) -> None:
        """Means of a step, over the same members."""
        self._rewards.append(reward)
        self._shadows.append(shadow)
        self._steps += 1
        if self._steps % BLOCK_STEPS:
            return
        block = _Block(*_newest(self._rewards), *_newest(self._shadows))
        if self._steps > BLOCK_STEPS:
            self.divergence = _apart(self._best, block)
        if block.shadow > self._best.shadow:
            self._best = block


def _apart(best: _Block, now: _Block) -> float:
    """The lesser of the reward's rise and the shadow's fall, in standard errors of each."""
    rise = (now.reward - best.reward) / _error(now.reward_error + best.reward_error)
    fall = (best.shadow - now.shadow) / _error(now.shadow_error + best.shadow_error)
    return max(-MOST_ERRORS, min(rise, fall, MOST_ERRORS))


def _error(square: float) -> float:
    return max(math.sqrt(square), LEAST_ERROR)


def _newest(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a block's steps, and the square of its standard error by the noise of them all.

    The noise of a step is half the mean square of the differences from step to step, which a trend
    does not add to (von Neumann, 1941, Distribution of the ratio of the mean square successive
    difference to the variance).
    """
    noise = fmean([(later - one) ** 2 for one, later in pairwise(values)]) / 2
    return fmean([*values][-BLOCK_STEPS:]), noise / BLOCK_STEPS

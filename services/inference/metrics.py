"""The numbers of an inference process."""

from __future__ import annotations

import random
import statistics
from collections import deque

from pipeline.metrics import Clock, Metrics

KEPT_GAPS = 4096


class InferenceMetrics:
    """Counters of what was sampled, and what a flip costs by the tokens' own timestamps."""

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics)
        self.tokens = metrics.counter("tokens", "Tokens sampled and delivered or saved.")
        self.members = metrics.counter("members", "Members delivered.")
        self.lost_tokens = metrics.counter("lost_tokens", "Tokens decoded and then dropped.")
        self.flips = metrics.counter("flips", "Flips to new weights.")
        self.staging_errors = metrics.counter("staging_errors", "Versions that were not staged.")
        self.sequences = metrics.gauge("sequences", "Members being decoded.")
        gaps = Gaps()
        self.gaps = gaps
        step = metrics.gauge("decode_step_seconds", "Median gap between two tokens of a sequence.")
        step.set_function(gaps.median)
        swap = metrics.gauge("swap_pause_seconds", "Median gap across a flip less the median gap.")
        swap.set_function(gaps.swap_pause)
        chance = metrics.gauge("random_pause_seconds", "The same, at random steps without a flip.")
        chance.set_function(gaps.random_pause)


class Gaps:
    """Seconds between the tokens of the same sequences, with and without a flip between them.

    A gap counts where the later step prefilled nothing, so that it is one decode step and whatever
    the loop did before it.
    """

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=KEPT_GAPS)
        self._across: deque[float] = deque(maxlen=KEPT_GAPS)
        self._last: float | None = None

    def observe(self, *, ended: float, prefill: bool, flipped: bool) -> None:
        """A step that ended at `ended` (perf_counter seconds)."""
        if self._last is not None and not prefill:
            (self._across if flipped else self._plain).append(ended - self._last)
        self._last = ended

    def interrupt(self) -> None:
        """Nothing was being decoded: the next step has no gap."""
        self._last = None

    def median(self) -> float:
        """The median gap without a flip, in seconds."""
        return statistics.median(self._plain) if self._plain else float("nan")

    def swap_pause(self) -> float:
        """The median gap across a flip less the median gap."""
        return statistics.median(self._across) - self.median() if self._across else float("nan")

    def random_pause(self) -> float:
        """The same at as many random steps without a flip: what chance alone shows."""
        plain = list(self._plain)
        count = min(len(self._across), len(plain))
        if not count:
            return float("nan")
        return statistics.median(random.Random(0).sample(plain, count)) - self.median()

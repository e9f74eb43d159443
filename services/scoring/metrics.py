"""The numbers of scoring."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.clock import Clock
from pipeline.messages import Score
from pipeline.metrics import Metrics
from pipeline.watch.waits import COMPLETIONS

CAUSES = (COMPLETIONS,)
"""What scorers without work wait for."""

TENTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REWARDS = (-10, -2, -1, -0.5, -0.01, 0, *TENTHS, 0.99, 1, 2, 10)
"""Bounds of the buckets of the histogram: closest where most scorers' rewards are.

A quantile is read off as if a bucket's rewards were spread over it, so those of 0 and of 1 have
narrow ones.
"""


class Numbers:
    """Each is counted in one place; `errors` never means a reward of 0."""

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics, causes=CAUSES)
        self.members = metrics.counter("members", "Members scored, or found to have no score.")
        self.reward = metrics.histogram("reward", "Rewards of members that were scored.", REWARDS)
        self.errors = metrics.counter_by(
            "errors",
            "Members without a reward: timeout, raised, crashed or bad_verdict.",
            reason=("timeout", "raised", "crashed", "bad_verdict"),
        )
        self.seconds = metrics.counter("grading_seconds", "Seconds that members were being graded.")
        self.replaced = metrics.counter("replaced_workers", "Workers killed and started again.")
        self.waiting = metrics.gauge("waiting_members", "Members taken and not yet graded.")

    def settled(self, scores: Iterable[Score]) -> None:
        """The bus took these as the members' scores."""
        for score in scores:
            self.members.inc()
            if score.reward is not None:
                self.reward.observe(score.reward)

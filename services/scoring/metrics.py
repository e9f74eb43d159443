"""The numbers of scoring."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.clock import Clock
from pipeline.messages import Score
from pipeline.metrics import Metrics
from pipeline.protocols import Verdict
from pipeline.verdicts import FAULTS
from pipeline.watch.waits import COMPLETIONS

CAUSES = (COMPLETIONS,)
"""What scorers without work wait for."""

UNNAMED = "none"
"""The reason of a verdict that has none."""

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
            "Members without a reward: timeout, raised, crashed, bad_verdict or unavailable.",
            reason=FAULTS,
        )
        self.faults = metrics.counter_met(
            "faults",
            "Answers to which a scorer gave no verdict, and why; a shadow's cost nothing.",
            "scorer",
            "reason",
        )
        self.verdicts = metrics.counter_met(
            "verdicts",
            "Verdicts by their scorer and the reason that it gave, or none.",
            "scorer",
            "reason",
        )
        self.retries = metrics.counter("retries", "Times that a scorer was asked again.")
        self.seconds = metrics.counter("grading_seconds", "Seconds that members were being graded.")
        self.replaced = metrics.counter("replaced_workers", "Workers killed and started again.")
        self.golden_changes = metrics.counter(
            "golden_changes",
            "Times that a golden answer's verdict changed, to another than expected or back.",
        )
        self.golden_differences = metrics.gauge(
            "golden_differences",
            "Golden answers that have another verdict than expected, as last asked.",
        )
        self.waiting = metrics.gauge("waiting_members", "Members taken and not yet graded.")

    def judged(self, scorer: str, verdict: Verdict) -> None:
        """A scorer, by the name that it has in the run, gave this verdict."""
        self.verdicts.labels(scorer=scorer, reason=verdict.reason or UNNAMED).inc()

    def settled(self, scores: Iterable[Score]) -> None:
        """The bus took these as the members' scores."""
        for score in scores:
            self.members.inc()
            if score.reward is not None:
                self.reward.observe(score.reward)
            if score.error:
                self.errors.labels(reason=score.error.partition(":")[0]).inc()

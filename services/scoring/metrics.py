"""The numbers of scoring."""

from __future__ import annotations

from pipeline.metrics import Metrics


class Numbers:
    """Each is counted in one place; `errors` never means a reward of 0."""

    def __init__(self, metrics: Metrics) -> None:
        self.members = metrics.counter("members", "Members scored, or found to have no score.")
        self.errors = metrics.counter(
            "errors",
            "Members without a reward: timeout, raised, crashed or bad_verdict.",
            "reason",
        )
        self.seconds = metrics.counter("grading_seconds", "Seconds that members were being graded.")
        self.replaced = metrics.counter("replaced_workers", "Workers killed and started again.")
        self.waiting = metrics.gauge("waiting_members", "Members taken and not yet graded.")
        for reason in ("timeout", "raised", "crashed", "bad_verdict"):
            self.errors.labels(reason=reason)

"""The numbers of prompting."""

from __future__ import annotations

from pipeline.metrics import Metrics


class Numbers:
    """Each is counted in one place."""

    def __init__(self, metrics: Metrics) -> None:
        self.groups = metrics.counter("groups", "Prompt groups admitted to the window.")
        self.refusals = metrics.counter(
            "refusals", "Admissions put off: the window full, or Redis short of memory.", "reason"
        )
        for reason in ("full", "memory"):
            self.refusals.labels(reason=reason)
        self.unusable = metrics.counter(
            "unusable_groups",
            "Groups of an example that cannot be attempted: dead letters.",
            "reason",
        )
        for reason in ("unreadable", "not_encoded", "prompt_too_long", "too_large"):
            self.unusable.labels(reason=reason)

"""The numbers of prompting."""

from __future__ import annotations

from pipeline.clock import Clock
from pipeline.metrics import Metrics
from pipeline.watch.waits import END, MEMORY, WINDOW

CAUSES = (WINDOW, MEMORY, END)
"""What prompting waits for when it cannot admit."""


class Numbers:
    """Each is counted in one place."""

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics, causes=CAUSES)
        self.groups = metrics.counter("groups", "Prompt groups admitted to the window.")
        self.refusals = metrics.counter_by(
            "refusals",
            "Admissions put off: the window full, or Redis short of memory.",
            reason=("full", "memory"),
        )
        self.unusable = metrics.counter_by(
            "unusable_groups",
            "Groups of an example that cannot be attempted: dead letters.",
            reason=("unreadable", "not_encoded", "prompt_too_long", "too_large"),
        )

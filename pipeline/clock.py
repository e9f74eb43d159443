"""Where the seconds of a service's loop go, and what it waits for while it is idle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from pipeline.metrics import Metrics

Activity = Literal["busy", "idle", "other"]
ACTIVITIES: tuple[Activity, ...] = ("busy", "idle", "other")


class Clock:
    """Where the seconds of a loop go: busy, idle (blocked on input) or other, each timed itself.

    Nothing is derived: wall is measured on its own, so that the three can be checked against it.
    """

    def __init__(self, metrics: Metrics, *, causes: Sequence[str]) -> None:
        """`causes` are what the loop can be idle for."""
        self._seconds = metrics.counter_by(
            "loop_seconds",
            "Seconds of the loop: busy, idle (blocked on input) or other.",
            activity=ACTIVITIES,
        )
        self._idle = metrics.counter_by(
            "idle_seconds",
            "Seconds of the loop that were idle, by what it waited for.",
            cause=causes,
        )
        self._wall = metrics.counter(
            "wall_seconds", "Seconds from the loop's first block to its latest."
        )
        self._last: float | None = None
        self._lap: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)

    @contextmanager
    def __call__(
        self, activity: Activity, cause: str = "", *, share: float = 1.0
    ) -> Iterator[None]:
        """Times the block; `cause` says what an idle one waits for.

        Of a loop that keeps many busy, only a `share` of the time may be spent so: the rest is
        idle, by the same cause.
        """
        started = time.perf_counter()
        if self._last is None:
            self._last = started
        try:
            yield
        finally:
            now = time.perf_counter()
            spent = share * (now - started)
            self._spend(activity, spent, cause)
            if share < 1:
                self._spend("idle", now - started - spent, cause)
            self._wall.inc(now - self._last)
            self._last = now

    def _spend(self, activity: Activity, seconds: float, cause: str) -> None:
        self._seconds.labels(activity=activity).inc(seconds)
        if activity == "idle":
            self._idle.labels(cause=cause).inc(seconds)
        self._lap[activity] += seconds

    def lap(self) -> dict[str, float]:
        """Seconds by activity since the last lap, as `busy_seconds` and so on."""
        lap = {f"{activity}_seconds": spent for activity, spent in self._lap.items()}
        self._lap = dict.fromkeys(self._lap, 0.0)
        return lap

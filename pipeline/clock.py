"""Where the seconds of a service's loop go, and what it waits for while it is idle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from pipeline.metrics import Metrics

Activity = Literal["busy", "idle", "other"]
ACTIVITIES: tuple[Activity, ...] = ("busy", "idle", "other")


class Block:
    """A stretch of a loop, timed as a `with` statement."""

    __slots__ = ("_clock", "_started", "activity", "cause", "share")

    def __init__(self, clock: Clock, activity: Activity, cause: str, share: float) -> None:
        self._clock, self.activity, self.cause, self.share = clock, activity, cause, share

    def __enter__(self) -> None:
        self._started = self._clock.begin()

    def __exit__(self, *_: object) -> None:
        self._clock.end(self, self._started)


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

    def __call__(self, activity: Activity, cause: str = "", *, share: float = 1.0) -> Block:
        """Times the block; `cause` says what an idle one waits for.

        Of a loop that keeps many busy, only a `share` of the time may be spent so: the rest is
        idle, by the same cause.
        """
        return Block(self, activity, cause, share)

    def begin(self) -> float:
        """Now, in seconds; with the first block the wall's seconds begin."""
        started = time.perf_counter()
        if self._last is None:
            self._last = started
        return started

    def end(self, block: Block, started: float) -> None:
        """The block is over: its seconds are spent, and the wall's go on to here."""
        now, last = time.perf_counter(), self._last or started
        spent = block.share * (now - started)
        self._spend(block.activity, spent, block.cause)
        if block.share < 1:
            self._spend("idle", now - started - spent, block.cause)
        self._wall.inc(now - last)
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

"""Rates over the last seconds, from snapshots as they come; a report's are over the whole run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pipeline.ledger import Sum
from pipeline.watch import Snapshot
from services.up import totals

WINDOW_SECONDS = 10.0
"""Beats come once a second, so a shorter window would mostly show their rhythm."""


class Reading(NamedTuple):
    """Sums that only grow, as of one moment."""

    at: float
    generated: float
    trained: float
    idle: dict[str, float]
    wall: dict[str, float]


class Rates(NamedTuple):
    """None until there are two readings that differ in time."""

    generated: float | None = None
    trained: float | None = None
    idle: Mapping[str, float | None] = MappingProxyType({})


class Meter:
    """Remembers readings for as long as the window reaches back."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def observe(self, snapshot: Snapshot, at: float) -> Rates:
        """The rates up to this snapshot, taken at `at` (monotonic seconds)."""
        now = read(snapshot, at)
        self._readings.append(now)
        while len(self._readings) > 2 and at - self._readings[1].at >= WINDOW_SECONDS:
            self._readings.popleft()
        return between(self._readings[0], now)


def read(snapshot: Snapshot, at: float) -> Reading:
    """The sums of a snapshot."""
    engines = totals.of_service(snapshot.beats, "inference")
    by_service = {s: totals.of_service(snapshot.beats, s) for s in ("inference", "training")}
    return Reading(
        at=at,
        generated=totals.total(engines, "tokens"),
        trained=snapshot.ledger.get("trained", Sum(0, 0)).tokens,
        idle={s: totals.by_label(b, "loop_seconds").get("idle", 0) for s, b in by_service.items()},
        wall={s: totals.total(b, "wall_seconds") for s, b in by_service.items()},
    )


def between(first: Reading, last: Reading) -> Rates:
    """Differences over the time, and idle seconds over wall seconds."""
    seconds = last.at - first.at
    if seconds <= 0:
        return Rates()
    idle: dict[str, float | None] = {}
    for service, wall in last.wall.items():
        passed = wall - first.wall[service]
        waited = last.idle[service] - first.idle[service]
        idle[service] = min(1.0, waited / passed) if passed > 0 else None
    return Rates(
        generated=(last.generated - first.generated) / seconds,
        trained=(last.trained - first.trained) / seconds,
        idle=idle,
    )

"""The looks of `sluice up` at its run, and an alarm for each thing that begins to be wrong.

What is wrong is said by `pipeline.watch`; here is only remembered what was said before.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.bus.bus import Bus
from pipeline.bus.connection import PATIENCE_SECONDS, patience
from pipeline.bus.errors import Unreachable
from pipeline.watch import Finding, Snapshot, findings

TRY_SECONDS = 1.0
SURE_SECONDS = 2.0
"""Of our own clock: after a suspended machine, or a lost server, all look silent for a moment."""
START_SECONDS = 8.0
"""A process may take so long to its first beat."""

Key = tuple[str, str]


class Lookout:
    """`tell` hears of every alarm, and of its end."""

    def __init__(self, bus: Bus, tell: Callable[[str], None]) -> None:
        self._bus, self._tell = bus, tell
        self._since: dict[Key, float] = {}
        self._told: dict[Key, str] = {}
        self._lost_at: float | None = None

    def look(self, at: float) -> Snapshot | None:
        """A look at `at` (monotonic seconds); None while the server does not answer.

        Raises Unreachable once that has lasted for as long as an act waits for it.
        """
        try:
            with patience(TRY_SECONDS):
                snapshot = self._bus.snapshot()
        except Unreachable as exc:
            self._lose(exc, at)
            return None
        if self._lost_at is not None:
            self._tell(f"the server answers again, after {at - self._lost_at:.0f} s")
            self._lost_at = None
        self.observe(snapshot, at)
        return snapshot

    def observe(self, snapshot: Snapshot, at: float) -> None:
        """Tells what is new of what is grave, and what is over; nothing of a run that is."""
        if snapshot.state.stop:
            return
        grave = {(found.kind, found.who): found for found in findings(snapshot) if found.grave}
        for key in self._told.keys() - grave.keys():
            self._tell(f"no longer: {self._told.pop(key)}")
        self._since = {key: self._since.get(key, at) for key in grave}
        for key, found in grave.items():
            if key not in self._told and at - self._since[key] >= _patience_with(found):
                self._tell(f"alarm: {found.sentence}")
                self._told[key] = found.sentence

    def _lose(self, exc: Unreachable, at: float) -> None:
        if self._lost_at is None:
            self._lost_at = at
            self._tell(f"alarm: {exc}")
        if at - self._lost_at > PATIENCE_SECONDS:
            raise exc


def _patience_with(found: Finding) -> float:
    return START_SECONDS if found.kind == "missing" else SURE_SECONDS

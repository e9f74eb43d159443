"""Whose silence is so long that it is killed: many times what the watchdog names it for.

What is done about it is `supervisor.py`'s.
"""

from __future__ import annotations

from pipeline.watch import Snapshot, processes

LEASES = 3.0
LEAST_SECONDS = 20.0
SURE_SECONDS = 3.0
"""Of our own clock: after a suspended machine, or a lost server, all look silent for a moment."""


class Silence:
    """Remembers since when each process has looked silent, from snapshot to snapshot."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def observe(self, snapshot: Snapshot, at: float) -> dict[tuple[str, int], float]:
        """Seconds of silence by instance and pid; `at` is the snapshot's time (monotonic seconds).

        A process that has not beaten yet is not silent, and one in a declared long act goes on
        beating.
        """
        limit = max(LEAST_SECONDS, LEASES * snapshot.lease_seconds)
        silent = {
            (seen.beat.instance, seen.beat.pid): seen.age_seconds
            for seen in processes(snapshot.beats)
            if seen.age_seconds > limit
        }
        self._since = {who: self._since.get(who, at) for who in silent}
        return {who: age for who, age in silent.items() if at - self._since[who] >= SURE_SECONDS}

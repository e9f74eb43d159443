"""What was done a second, between two looks at a run; a report's rates are over the whole run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pipeline.ledger import GENERATED, Fates, Sum
from pipeline.watch import Seen, Snapshot, processes
from pipeline.watch.advice import UNITS

WINDOW_SECONDS = 10.0
"""Beats come once a second, so a shorter window would mostly show their rhythm."""


class Pace(NamedTuple):
    """Of one process: its work a second, in its service's unit, and the share that it was busy."""

    work: float | None = None
    busy: float | None = None


class Rates(NamedTuple):
    """Tokens a second, and by boot; None until there are two looks that differ in time."""

    generated: float | None = None
    trained: float | None = None
    paces: Mapping[str, Pace] = MappingProxyType({})


class Looks:
    """The looks of the last `seconds`, of which one is kept every `gap` seconds."""

    def __init__(self, seconds: float = WINDOW_SECONDS, gap: float = 0.0) -> None:
        self._seconds, self._gap = seconds, gap
        self._kept: deque[Snapshot] = deque()

    def add(self, now: Snapshot) -> Snapshot:
        """The oldest look that the window reaches back to: this one itself, if it is the first.

        So it is after the server's clock was set back.
        """
        if self._kept and now.at_seconds < self._kept[-1].at_seconds:
            self._kept.clear()
        if not self._kept or now.at_seconds - self._kept[-1].at_seconds >= self._gap:
            self._kept.append(now)
        while len(self._kept) > 2 and now.at_seconds - self._kept[1].at_seconds >= self._seconds:
            self._kept.popleft()
        return self._kept[0]


def between(before: Snapshot, now: Snapshot) -> Rates:
    """Differences over the time that passed from one look to the other."""
    seconds = now.at_seconds - before.at_seconds
    if seconds <= 0:
        return Rates()
    former = {seen.process: seen for seen in processes(before.beats)}
    paces = {
        seen.beat.boot: _pace(former[seen.process], seen, seconds)
        for seen in processes(now.beats)
        if seen.process in former
    }
    return Rates(
        generated=_grown(before.ledger, now.ledger, GENERATED) / seconds,
        trained=_grown(before.ledger, now.ledger, "trained") / seconds,
        paces=paces,
    )


def _grown(before: Fates, now: Fates, fate: str) -> int:
    """Tokens since then; none where the server was put back."""
    return max(0, now.get(fate, Sum(0, 0)).tokens - before.get(fate, Sum(0, 0)).tokens)


def _pace(former: Seen, last: Seen, seconds: float) -> Pace:
    """From beat to beat: neither came at the moment of its look."""
    passed = seconds + former.age_seconds - last.age_seconds

    def grown(name: str) -> float:
        return last.beat.totals.get(name, 0.0) - former.beat.totals.get(name, 0.0)

    if passed <= 0:
        return Pace()
    busy, wall = grown('loop_seconds{activity="busy"}'), grown("wall_seconds")
    return Pace(
        work=grown(UNITS[last.beat.service]) / passed if last.beat.service in UNITS else None,
        busy=min(1.0, busy / wall) if wall > 0 else None,
    )

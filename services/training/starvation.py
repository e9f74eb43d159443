"""Whose members are trained less often than they are sampled: by task, and by length.

Pure counts of what the pool has judged. What a step consumes does not depend on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from pipeline.messages import Starved

By = Literal["task", "length"]
Kinds = Counter[tuple[By, str]]
"""Members by kind: a task, or a bucket of lengths."""
BYS: tuple[By, ...] = ("task", "length")

LEAST_SHARE = 0.5
"""Below so much of its share of what was sampled a kind is starved."""
ENOUGH_GROUPS = 12
"""So many groups' worth of a kind should have been trained before its share means anything: by
chance alone fewer than half of 12 come in 2 of 100 cases."""
HALF_LIFE_STEPS = 64
MOST_TASKS = 32
OTHER = "other"


class Share(NamedTuple):
    """A kind of member: its part of all that were sampled, and of all that were trained."""

    by: By
    name: str
    sampled: float
    trained: float

    @property
    def quotient(self) -> float:
        """1 where it is trained as often as any other."""
        return self.trained / self.sampled


class Starvation:
    """Shares over the last steps: what is older counts half as much after each half-life.

    The first tasks that are met have counts of their own, all later ones share `other`.
    """

    def __init__(self, *, members: int) -> None:
        """A group has so many members: they share one prompt, so they are not so many draws."""
        self._enough = ENOUGH_GROUPS * members
        self._tasks: set[str] = set()
        self._sampled: dict[tuple[By, str], float] = {}
        self._trained: dict[tuple[By, str], float] = {}

    def observe(self, sampled: Kinds, trained: Kinds) -> None:
        """What one step has added."""
        fading = 0.5 ** (1 / HALF_LIFE_STEPS)
        for sums, new in ((self._sampled, sampled), (self._trained, trained)):
            for kind in sums:
                sums[kind] *= fading
            for (by, name), members in new.items():
                kind = by, self._bounded(name) if by == "task" else name
                sums[kind] = sums.get(kind, 0.0) + members

    def shares(self) -> list[Share]:
        """Of every kind of which enough should have been trained; no kind is alone."""
        return [share for by in BYS for share in self._shares(by)]

    def least(self, by: By) -> Share | None:
        """Whose quotient of the two shares is least; None while too little was counted."""
        return min(self._shares(by), key=lambda share: share.quotient, default=None)

    def starved(self) -> tuple[Starved, ...]:
        """Those that an alarm is for, the worst first."""
        short = [share for share in self.shares() if share.quotient < LEAST_SHARE]
        short.sort(key=lambda share: share.quotient)
        return tuple(Starved(s.by, s.name, s.trained, s.sampled) for s in short)

    def _shares(self, by: By) -> Iterable[Share]:
        sampled = {kind: n for kind, n in self._sampled.items() if kind[0] == by}
        whole = sum(sampled.values())
        trained = sum(n for kind, n in self._trained.items() if kind[0] == by)
        for kind, members in sorted(sampled.items()):
            if members / whole * trained >= self._enough and len(sampled) > 1:
                got = self._trained.get(kind, 0.0) / trained
                yield Share(by, kind[1], members / whole, got)

    def _bounded(self, task: str) -> str:
        if len(self._tasks) < MOST_TASKS:
            self._tasks.add(task)
        return task if task in self._tasks else OTHER

"""Held-out groups come home: what an evaluation found becomes a point of its version, and is kept.

Which groups there are is prompting's; what a point is, `pipeline.grades`'.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from pipeline import grades
from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import Graded
from pipeline.errors import SluiceError
from pipeline.grades import KeptVersion, Outcomes, Point
from pipeline.watch import Evaluation, Snapshot, present

log = logging.getLogger(__name__)


class _Halves(NamedTuple):
    """Of an evaluation's groups: the samples of each example, and then a greedy answer to each."""

    sampled: Outcomes
    greedy: Outcomes


class Evaluations:
    """Takes note of each evaluation once, and gives up one that can never end.

    The file is written before the run forgets what was found: a trainer that is killed in between
    writes the same once more.
    """

    def __init__(self, bus: Bus, folder: Path, epoch: int, *, members: int) -> None:
        """`members` is the number of samples of a prompt."""
        self._bus, self._folder, self._epoch, self._members = bus, folder, epoch, members

    def look(self, snapshot: Snapshot) -> Point | None:
        """The point of an evaluation that is complete by now. Raises SluiceError, Fenced."""
        standing = snapshot.evaluation
        if standing.is_complete:
            return self._conclude(standing)
        if is_lost(snapshot):
            log.warning("evaluation of version=%d is forgone: no engine has it", standing.version)
            self._bus.evaluations.forgo(self._epoch, standing.version)
        return None

    def _conclude(self, standing: Evaluation) -> Point | None:
        point = self._point(standing, self._bus.evaluations.graded())
        if point is not None:
            others = [p for p in grades.read(self._folder).points if p.version != point.version]
            grades.write(self._folder, [*others, point])
            log.info("%s", point.sentence())
        self._bus.evaluations.conclude(self._epoch, standing.version)
        return point

    def _point(self, standing: Evaluation, graded: Graded) -> Point | None:
        """None where no answer got a verdict, which is said."""
        sampled, greedy = _halves(standing.size, graded, self._members)
        try:
            return grades.summary(
                _kept(self._folder, standing.version),
                sampled,
                greedy,
                members=self._members,
                boots=graded.boots,
            )
        except SluiceError as exc:
            log.error("evaluation of version=%d: %s", standing.version, exc)
            return None


def is_lost(snapshot: Snapshot) -> bool:
    """Whether the evaluation has members to do, and no engine that lives keeps their weights."""
    standing = snapshot.evaluation
    kept = {seen.beat.pinned for seen in present(snapshot) if seen.alive}
    is_waiting = standing.prompts > 0 or standing.cursor < standing.size
    return standing.version >= 0 and is_waiting and standing.version not in kept


def _halves(size: int, graded: Graded, members: int) -> _Halves:
    """A group that left nothing (it was closed before) has no verdicts."""
    half = size // 2
    rows = [
        graded.outcomes.get(number, [None] * (members if number < half else 1))
        for number in range(size)
    ]
    return _Halves(rows[:half], rows[half:])


def _kept(folder: Path, version: int) -> KeptVersion:
    """As training kept it; a version that it has no weights of has no step either."""
    unknown = KeptVersion(version=version, step=-1, seconds=0.0, path="")
    return next((k for k in grades.kept_versions(folder) if k.version == version), unknown)

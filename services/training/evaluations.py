"""Held-out groups come home: what an evaluation found becomes a point of its version, and is kept.

Which groups there are is prompting's; what a point is, `pipeline.grades`'.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pipeline import grades
from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import Graded
from pipeline.errors import SluiceError
from pipeline.grades import Outcomes, Point
from pipeline.watch import Evaluation, Snapshot, keepers

log = logging.getLogger(__name__)

PATIENCE = 2
"""Turns for which a version is waited for that no engine has flipped to."""


class _Halves(NamedTuple):
    """Of an evaluation's groups: the samples of each example, and then a greedy answer to each."""

    sampled: Outcomes
    greedy: Outcomes


class Evaluations:
    """Takes note of each evaluation once, and gives up one that can never end.

    The file is written before the run forgets what was found: a trainer that is killed in between
    writes the same once more. `due` are the versions whose turn has come and whose end has not.
    """

    def __init__(self, bus: Bus, folder: Path, epoch: int, *, every: int, members: int) -> None:
        """Of `every` versions one is evaluated, by `members` samples of a prompt.

        A former trainer may have left some without an end.
        """
        self._bus, self._folder, self._epoch = bus, folder, epoch
        self._every, self._members = every, members
        self.due = frozenset(self._left_open(bus.snapshot()))

    def points(self) -> list[Point]:
        """What was found so far while the run went on, by version."""
        return [point for point in grades.read(self._folder).points if point.boots]

    def expect(self, version: int) -> None:
        """It was made; if its turn has come, engines that flip to it will keep it."""
        if version % self._every == 0:
            self.due |= {version}

    def look(self, snapshot: Snapshot) -> Point | None:
        """The point of an evaluation that is complete by now. Raises SluiceError, Fenced."""
        standing, point = snapshot.evaluation, None
        if standing.is_complete:
            point = self._conclude(standing)
        elif is_lost(snapshot):
            log.warning("evaluation of version=%d is forgone: no engine has it", standing.version)
            self._bus.evaluations.forgo(self._epoch, standing.version)
            self.due -= {standing.version}
        self._pass_over(snapshot)
        return point

    def end(self) -> None:
        """The run is over: what has no end by now gets none from its engines."""
        for version in sorted(self.due):
            log.warning("evaluation of version=%d is left for after the run: it is over", version)
        self.due = frozenset()

    def _conclude(self, standing: Evaluation) -> Point | None:
        point = self._point(standing, self._bus.evaluations.graded())
        if point is not None:
            grades.add(self._folder, [point])
        if self._bus.evaluations.conclude(self._epoch, standing.version) == "open":
            return None  # the server was put back since the look
        if point is not None:
            log.info("%s", point.sentence())
        self.due -= {standing.version}
        return point

    def _point(self, standing: Evaluation, graded: Graded) -> Point | None:
        """None where no answer got a verdict, or nobody could have its weights; which is said."""
        version = standing.version
        kept = next((k for k in grades.kept_versions(self._folder) if k.version == version), None)
        if kept is None:  # training was killed as it announced them
            log.error("evaluation of version=%d is of no use: its weights were not kept", version)
            return None
        sampled, greedy = _halves(standing.size, graded, self._members)
        try:
            return grades.summary(
                kept,
                sampled,
                greedy,
                members=self._members,
                boots=graded.boots,
                data=standing.data,
            )
        except SluiceError as exc:
            log.error("evaluation of version=%d: %s", version, exc)
            return None

    def _pass_over(self, snapshot: Snapshot) -> None:
        """What came while another was evaluated, or what no engine has flipped to in time."""
        late = self.due - _open(snapshot)
        gone = {version for version in late if self._is_past(version, snapshot)}
        for version in sorted(gone):
            log.warning("evaluation of version=%d is left for after the run: too late", version)
        self.due -= gone

    def _is_past(self, version: int, snapshot: Snapshot) -> bool:
        newest = snapshot.state.version
        return version <= snapshot.evaluation.last or version < newest - PATIENCE * self._every

    def _left_open(self, snapshot: Snapshot) -> Collection[int]:
        kept = {one.version for one in grades.kept_versions(self._folder)}
        ours = {version for version in kept if version % self._every == 0}
        return {v for v in ours if v in _open(snapshot) or not self._is_past(v, snapshot)}


def is_lost(snapshot: Snapshot) -> bool:
    """Whether the evaluation has members to do, and no engine that can do any keeps its weights."""
    standing = snapshot.evaluation
    is_waiting = standing.prompts > 0 or standing.cursor < standing.size
    kept = keepers(snapshot).values()
    return standing.version >= 0 and is_waiting and standing.version not in kept


def _open(snapshot: Snapshot) -> set[int]:
    """Versions that may yet be graded: the one that is, and what engines keep to be the next."""
    standing = snapshot.evaluation
    kept = {version for version in keepers(snapshot).values() if version > standing.last}
    return {standing.version, *kept}


def _halves(size: int, graded: Graded, members: int) -> _Halves:
    """A group that left nothing (it was closed before) has no verdicts."""
    half = size // 2
    rows = [
        graded.outcomes.get(number, [None] * (members if number < half else 1))
        for number in range(size)
    ]
    return _Halves(rows[:half], rows[half:])

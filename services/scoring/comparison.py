"""What another scorer would change in a run: counted member by member, a group at a time. Pure.

Who reads the members, and who judges them again, is in `rescore`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from pipeline.protocols import Verdict
from pipeline.verdicts import Fault
from pipeline.watch.finding import plural
from services.scoring.golden import cell

MOST_LARGEST = 10
MOST_FAULTS = 10
SAME = 1e-9
"""Rewards that differ by less have not changed."""


class Before(NamedTuple):
    """What the run made of a member."""

    reward: float
    outcome: float


class Again(NamedTuple):
    """A member judged again; `before` is None where it had no reward."""

    member: int
    before: Before | None
    now: Verdict | Fault


class Difference(Struct, frozen=True, kw_only=True):
    """A member whose reward has changed."""

    group: str
    member: int
    task: str
    old: float
    new: float


class Faulted(Struct, frozen=True, kw_only=True):
    """A member that the scorer has no verdict on."""

    group: str
    member: int
    fault: str


class Tally(Struct, kw_only=True):
    """Of the members that both have judged; right is what has an outcome above 0."""

    completions: int = 0
    old_mean: float = 0.0
    new_mean: float = 0.0
    old_right: int = 0
    new_right: int = 0
    right_to_wrong: int = 0
    wrong_to_right: int = 0
    changed: int = 0

    def add(self, before: Before, now: Verdict) -> None:
        """One more."""
        self.completions += 1
        self.old_mean += (before.reward - self.old_mean) / self.completions
        self.new_mean += (now.reward - self.new_mean) / self.completions
        was, is_ = before.outcome > 0, _outcome(now) > 0
        self.old_right += was
        self.new_right += is_
        self.right_to_wrong += was and not is_
        self.wrong_to_right += is_ and not was
        self.changed += abs(before.reward - now.reward) > SAME


class Comparison(Struct, kw_only=True):
    """Of a run as it was scored, by `was`, with `scorer`.

    `signs` is how many members' rewards would stand on the other side of their group's mean, so
    that their advantage may have another sign. Members without a reward of the run's are
    `unscored`, and those without a verdict of the new scorer are in `faults`, by their reason.
    """

    run: str
    scorer: str
    was: list[str] = []
    steps: int = 0
    unrecorded: int = 0
    all: Tally
    tasks: dict[str, Tally] = {}
    signs: int = 0
    unscored: int = 0
    faults: dict[str, int] = {}
    faulted: list[Faulted] = []
    largest: list[Difference] = []

    def add(self, group: str, task: str, members: Sequence[Again]) -> None:
        """A group, whole."""
        both = [(m, m.before, m.now) for m in members if m.before and isinstance(m.now, Verdict)]
        tally = self.tasks.setdefault(task, Tally())
        for again, before, now in both:
            self.all.add(before, now)
            tally.add(before, now)
            self._note(group, task, again.member, before.reward, now.reward)
        self.signs += _signs([b.reward for _, b, _ in both], [n.reward for _, _, n in both])
        self.unscored += sum(m.before is None for m in members)
        for again in members:
            if isinstance(again.now, Fault):
                self._fault(group, again.member, again.now)

    def _note(self, group: str, task: str, member: int, old: float, new: float) -> None:
        if abs(old - new) > SAME:
            found = Difference(group=group, member=member, task=task, old=old, new=new)
            self.largest = heapq.nlargest(MOST_LARGEST, [*self.largest, found], key=_size)

    def _fault(self, group: str, member: int, fault: Fault) -> None:
        self.faults[fault.reason] = self.faults.get(fault.reason, 0) + 1
        if len(self.faulted) < MOST_FAULTS:
            self.faulted.append(Faulted(group=group, member=member, fault=str(fault)))


def lines(found: Comparison) -> Iterator[str]:
    """The comparison, to be read."""
    counts = plural(found.all.completions, "completion"), plural(found.steps, "step")
    yield f"{found.run}: {' of '.join(counts)}"
    yield f"old: {', '.join(found.was) or 'nothing'}"
    yield f"new: {found.scorer}"
    if found.unrecorded:
        yield f'steps without their completions (training.record = "off"): {found.unrecorded:,}'
    if found.unscored:
        yield f"completions that had no reward: {found.unscored:,}"
    yield from _table(found)
    yield f"rewards that differ: {found.all.changed:,}"
    yield f"advantages whose sign may differ: {found.signs:,}"
    for one in found.largest:
        yield f"  group {cell(one.group)} member {one.member}: {one.old:g} -> {one.new:g}"
    for reason, count in sorted(found.faults.items()):
        yield f"without a verdict now, {reason}: {count:,}"
    for fault in found.faulted:
        yield f"  group {cell(fault.group)} member {fault.member}: {cell(fault.fault)}"


def _table(found: Comparison) -> Iterator[str]:
    named = [(cell(name) or "(none)", tally) for name, tally in sorted(found.tasks.items())]
    wide = max(4, *(len(name) for name, _ in named)) if named else 4
    heads = ("mean old", "new", "right old", "new", "right->wrong", "wrong->right")
    yield "  ".join((f"{'task':{wide}}", f"{'number':>9}", *(f"{head:>12}" for head in heads)))
    for name, tally in (("all", found.all), *(named if len(named) > 1 else ())):
        means = [f"{mean:>12.4f}" for mean in (tally.old_mean, tally.new_mean)]
        counts = (tally.old_right, tally.new_right, tally.right_to_wrong, tally.wrong_to_right)
        cells = [*means, *(f"{count:>12,}" for count in counts)]
        yield "  ".join((f"{name:{wide}}", f"{tally.completions:>9,}", *cells))


def _signs(old: Sequence[float], new: Sequence[float]) -> int:
    """Members on another side of the mean than before."""
    sides = [_sides(old), _sides(new)]
    return sum(a != b for a, b in zip(*sides, strict=True))


def _sides(rewards: Sequence[float]) -> list[int]:
    mean = math.fsum(rewards) / max(1, len(rewards))
    return [0 if abs(r - mean) <= SAME else 1 if r > mean else -1 for r in rewards]


def _outcome(verdict: Verdict) -> float:
    return verdict.reward if verdict.outcome is None else verdict.outcome


def _size(difference: Difference) -> float:
    return abs(difference.new - difference.old)

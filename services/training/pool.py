"""The groups that a trainer has taken and not yet closed, and what was refused on the way.

A group is judged when it is taken. What cannot be used is refused at once, so that its place in the
window is free; what can be used waits here, and is judged again when a batch is built from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from pipeline.bus.groups import Groups
from pipeline.errors import SluiceError
from pipeline.ledger import Fates, total
from pipeline.protocols import Advantage
from pipeline.run import Lag
from pipeline.versions import Freshness
from services.training.briefs import Brief
from services.training.considered import Considered, Refusal, Rules, consider
from services.training.metrics import bucket
from services.training.starvation import Kinds
from services.training.streams import POLICY_ALONE, Coefficients
from services.training.weights import AS_GRADED, Treatment


class Tally(NamedTuple):
    """What was judged for the first time since the last tally, and what was trained.

    `sampled` are the members of groups that a gradient can be made of, fresh or not; `dropped` are
    the groups that were refused whole.
    """

    zero_signal_groups: int
    rewards: tuple[float, ...]
    fates: Fates
    refused: tuple[Refusal, ...]
    sampled: Kinds
    trained: Kinds
    dropped: tuple[Brief, ...] = ()


NOTHING_REFUSED = Tally(0, (), {}, (), Counter(), Counter())


LOOK_STEPS = 4
"""Ready groups are looked at for so many steps ahead: a look costs the same however many wait."""


class HasCargo(Protocol):
    """Who reads groups from the bus, and keeps their cargo until it is recorded or dropped."""

    def read(self, groups: Sequence[str]) -> list[Brief]: ...

    def drop(self, groups: Sequence[str]) -> None: ...


class Pool:
    """`rules` move on with every step; `exhausted`: nothing can come beside what is ready.

    What is here are briefs: cargo stays with the rank that has read it.
    """

    def __init__(
        self,
        groups: Groups,
        epoch: int,
        *,
        cargo: HasCargo,
        lag: Lag,
        advantage: Advantage,
        per_step: int,
        step: int = 0,
        steps: Mapping[int, int] = MappingProxyType({}),
        streams: Coefficients = POLICY_ALONE,
        treatment: Treatment = AS_GRADED,
    ) -> None:
        """`step` is where the trainer stands, `steps` has that of every version it may meet."""
        freshness = Freshness(step=step, steps=dict(steps), lag_max=lag.max, unit=lag.unit)
        self.rules = Rules(freshness, advantage, streams, treatment)
        self.exhausted = False
        self._groups, self._epoch, self._cargo = groups, epoch, cargo
        self._limit, self._more = LOOK_STEPS * per_step, False
        self._order: list[str] = []
        self._usable: dict[str, Considered] = {}
        self._first: list[Considered] = []
        self._refused: list[Considered] = []
        self._trained: Kinds = Counter()

    def look(self, batch: int) -> bool:
        """Fetch what has become ready, and refuse what cannot be used.

        `batch` is the trainer's own count of commits; False where the run's is lower, since the
        server was put back to an older state: then nothing was done. Raises SluiceError where it
        is higher.
        """
        ready = self._groups.collect(self._epoch, limit=self._limit)
        if ready.batch < batch:
            return False
        if ready.batch > batch:
            raise SluiceError(f"the run has {ready.batch} batches, and its trainer made {batch}")
        self._order = [ticket.group for ticket in ready.groups]
        new = [group for group in self._order if group not in self._usable]
        fresh = [consider(brief, self.rules) for brief in self._cargo.read(new)]
        self._first += fresh
        moved = [
            consider(c.brief, self.rules) for c in self._usable.values() if c.rules != self.rules
        ]
        for considered in (*fresh, *moved):
            self._keep_or_refuse(considered)
        self._more = ready.num_ready > len(self._order)
        self.exhausted = ready.eof and ready.alive == ready.num_ready and not self._more
        return True

    def starved(self, chosen: Iterable[Considered], per_step: int) -> dict[int, int]:
        """How many started groups, by start step, a step with these would leave without a seat in
        time.

        Groups are seated strictly oldest first, `per_step` at a time. What is whole already gains
        nothing from waiting; and where more is whole than was looked at, none is waited for.
        """
        if self._more:
            return {}
        whole = Counter(c.brief.start_step for c in self._usable.values())
        flight, freshness = self._groups.started() - whole, self.rules.freshness
        whole.subtract(c.brief.start_step for c in chosen)
        return unseated(
            flight, +whole, step=freshness.step, per_step=per_step, lag_max=freshness.lag_max
        )

    @property
    def drained(self) -> bool:
        """Whether all that could come was used."""
        return self.exhausted and not self._usable

    def oldest(self, count: int) -> list[Considered]:
        """Up to so many usable groups, those that were started first in front."""
        usable = (self._usable[group] for group in self._order if group in self._usable)
        return [considered for considered, _ in zip(usable, range(count), strict=False)]

    def made(self, version: int, step: int) -> None:
        """The step made this version: everything is one step older now."""
        freshness = self.rules.freshness
        steps = {**freshness.steps, version: step}
        self.rules = self.rules._replace(freshness=freshness._replace(step=step, steps=steps))

    def forget(self, groups: Iterable[str], *, trained: bool) -> None:
        """These were closed by a commit, whose step was taken or not."""
        for group in groups:
            considered = self._usable.pop(group, None)
            if considered is not None and trained:
                self._trained += kinds(considered, {r.member for r in considered.rows if r.tokens})

    def tally(self) -> Tally:
        """What happened since the last call."""
        first, refused, trained = self._first, self._refused, self._trained
        self._first, self._refused, self._trained = [], [], Counter()
        return Tally(
            zero_signal_groups=sum(c.verdict == "zero_signal" for c in first),
            rewards=tuple(reward for c in first for reward in c.rewards.values()),
            fates=total(c.fates for c in refused),
            refused=tuple(one for c in refused for one in c.refused),
            sampled=sum((kinds(c, c.graded) for c in first if c.could_teach), Counter()),
            trained=trained,
            dropped=tuple(c.brief for c in refused),
        )

    def _keep_or_refuse(self, considered: Considered) -> None:
        group = considered.brief.group
        if considered.verdict == "keep":
            self._usable[group] = considered
            return
        self._usable.pop(group, None)
        self._groups.refuse(self._epoch, group, considered.fates)
        self._cargo.drop([group])
        self._refused.append(considered)


def kinds(considered: Considered, members: Iterable[int]) -> Kinds:
    """These members of a group by its task, and by their lengths."""
    out: Kinds = Counter()
    brief = considered.brief
    for member in members:
        out["task", brief.task] += 1
        out["length", bucket(brief.members[member].tokens)] += 1
    return out


def unseated(
    flight: Mapping[int, int],
    whole: Mapping[int, int],
    *,
    step: int,
    per_step: int,
    lag_max: int,
) -> dict[int, int]:
    """How many groups in flight, by start step, will be too old for their seat once `step` is made.

    The i-th oldest, whole ones among them, is trained ⌊i / per_step⌋ steps after the next one. Of
    one start step the whole go first.
    """
    late, before = {}, 0
    for start in sorted({*flight, *whole}):
        count = flight.get(start, 0) + whole.get(start, 0)
        in_time = max(0, (start + lag_max - step) * per_step - before)
        if few := min(flight.get(start, 0), max(0, count - in_time)):
            late[start] = few
        before += count
    return late

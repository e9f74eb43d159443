"""The groups that a trainer has taken and not yet closed, and what was refused on the way.

A group is judged when it is taken. What cannot be used is refused at once, so that its place in the
window is free; what can be used waits here, and is judged again when a batch is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pipeline.bus.groups import Groups
from pipeline.errors import SluiceError
from pipeline.ledger import Fates, total
from pipeline.protocols import Advantage
from pipeline.run import Lag
from pipeline.versions import Freshness
from services.training.considered import Considered, Refusal, Rules, consider


class Tally(NamedTuple):
    """What was judged for the first time since the last tally."""

    zero_signal_groups: int
    rewards: tuple[float, ...]
    fates: Fates
    refused: tuple[Refusal, ...]


NOTHING_REFUSED = Tally(0, (), {}, ())


LOOK_STEPS = 4
"""Ready groups are looked at for so many steps ahead: a look costs the same however many wait."""


class Pool:
    """`rules` move on with every step; `exhausted`: nothing can come beside what is ready."""

    def __init__(
        self,
        groups: Groups,
        epoch: int,
        *,
        lag: Lag,
        advantage: Advantage,
        vocabulary: int,
        per_step: int,
        step: int = 0,
        steps: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`step` is where the trainer stands, `steps` has that of every version it may meet."""
        freshness = Freshness(step=step, steps=dict(steps), lag_max=lag.max, unit=lag.unit)
        self.rules, self.exhausted = Rules(freshness, advantage, vocabulary), False
        self._groups, self._epoch = groups, epoch
        self._limit, self._more = LOOK_STEPS * per_step, False
        self._order: list[str] = []
        self._usable: dict[str, Considered] = {}
        self._first: list[Considered] = []
        self._refused: list[Considered] = []

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
        fresh = [consider(group, self.rules) for group in self._groups.fetch(new)] if new else []
        self._first += fresh
        moved = [
            consider(c.group, self.rules) for c in self._usable.values() if c.rules != self.rules
        ]
        for considered in (*fresh, *moved):
            self._keep_or_refuse(considered)
        self._more = ready.num_ready > len(self._order)
        self.exhausted = ready.eof and ready.alive == ready.num_ready and not self._more
        return True

    def starved(self, chosen: Iterable[Considered], per_step: int) -> frozenset[str]:
        """Started groups that a step with these would leave without a seat in time.

        Groups are seated strictly oldest first, `per_step` at a time. What is whole already gains
        nothing from waiting; and where more is whole than was looked at, none is waited for.
        """
        if self._more:
            return frozenset()
        started, freshness = self._groups.started(), self.rules.freshness
        for considered in chosen:
            started.pop(considered.group.prompt.group, None)
        late = unseated(started, step=freshness.step, per_step=per_step, lag_max=freshness.lag_max)
        return late.difference(self._order)

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

    def forget(self, groups: Iterable[str]) -> None:
        """These were closed by a commit."""
        for group in groups:
            self._usable.pop(group, None)

    def tally(self) -> Tally:
        """What happened since the last call."""
        first, refused = self._first, self._refused
        self._first, self._refused = [], []
        return Tally(
            zero_signal_groups=sum(c.verdict == "zero_signal" for c in first),
            rewards=tuple(reward for c in first for reward in c.rewards),
            fates=total(c.fates for c in refused),
            refused=tuple(one for c in refused for one in c.refused),
        )

    def _keep_or_refuse(self, considered: Considered) -> None:
        group = considered.group.prompt.group
        if considered.verdict == "keep":
            self._usable[group] = considered
            return
        self._usable.pop(group, None)
        self._groups.refuse(self._epoch, group, considered.fates)
        self._refused.append(considered)


def unseated(
    started: Mapping[str, int], *, step: int, per_step: int, lag_max: int
) -> frozenset[str]:
    """Which of these groups, by start step, will be too old for their seat once `step` is made.

    The i-th oldest is trained ⌊i / per_step⌋ steps after the next one.
    """
    order: Sequence[str] = sorted(started, key=lambda group: (started[group], group))
    return frozenset(
        group
        for i, group in enumerate(order)
        if step + 1 + i // per_step - started[group] > lag_max
    )

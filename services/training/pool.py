"""The groups that a trainer has taken and not yet closed, and what was refused on the way.

A group is judged when it is taken. What cannot be used is refused at once, so that its place in the
window is free; what can be used waits here, and is judged again when a batch is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.bus.groups import Groups
from pipeline.errors import SluiceError
from pipeline.ledger import Fates, total
from pipeline.protocols import Advantage
from pipeline.run import Lag
from pipeline.versions import Freshness
from services.training.considered import Considered, Rules, consider


class Tally(NamedTuple):
    """What was judged for the first time since the last tally."""

    zero_signal_groups: int
    rewards: tuple[float, ...]
    fates: Fates


class Pool:
    """`rules` move on with every step; `exhausted`: nothing can come beside what is ready."""

    def __init__(self, groups: Groups, epoch: int, *, lag: Lag, advantage: Advantage) -> None:
        freshness = Freshness(step=0, steps={0: 0}, lag_max=lag.max, unit=lag.unit)
        self.rules, self.exhausted = Rules(freshness, advantage), False
        self._groups, self._epoch = groups, epoch
        self._order: list[str] = []
        self._usable: dict[str, Considered] = {}
        self._first: list[Considered] = []
        self._refused: list[Fates] = []

    def look(self, batch: int) -> None:
        """Fetch what has become ready, and refuse what cannot be used.

        `batch` is the trainer's own count of commits; raises SluiceError where the run's differs.
        """
        ready = self._groups.collect(self._epoch)
        if ready.batch != batch:
            raise SluiceError(
                f"the run has {ready.batch} batches committed and its trainer {batch}: the server"
                " was put back to an older state, and a run cannot be resumed yet"
            )
        self._order = [ticket.group for ticket in ready.groups]
        new = [group for group in self._order if group not in self._usable]
        fresh = [consider(group, self.rules) for group in self._groups.fetch(new)] if new else []
        self._first += fresh
        moved = [
            consider(c.group, self.rules) for c in self._usable.values() if c.rules != self.rules
        ]
        for considered in (*fresh, *moved):
            self._keep_or_refuse(considered)
        self.exhausted = ready.eof and ready.alive == len(self._order)

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
            fates=total(refused),
        )

    def _keep_or_refuse(self, considered: Considered) -> None:
        group = considered.group.prompt.group
        if considered.verdict == "keep":
            self._usable[group] = considered
            return
        self._usable.pop(group, None)
        self._groups.refuse(self._epoch, group, considered.fates)
        self._refused.append(considered.fates)

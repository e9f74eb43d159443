"""An engine and, while an evaluation lasts, the weights that it keeps for it: held-out work runs on
those, to its end on one version, and all other work on what the engine serves.

Which version is kept is decided here; when it may be let go is the service's to hear.
"""

from __future__ import annotations

from pipeline.messages import Completion, Work
from pipeline.protocols import Engine, StepTimes


class Lanes:
    """Work goes to the engine, or to its kept weights where it is pinned to them."""

    def __init__(self, engine: Engine, *, every: int = 0) -> None:
        """Of `every` versions one is kept when it is adopted; 0: none."""
        self._engine, self._every = engine, every
        self._kept: Engine | None = None

    @property
    def pinned(self) -> int:
        """The version that is kept, or -1."""
        return self._kept.version if self._kept else -1

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return any(engine.busy for engine in self._all)

    def pinned_room(self) -> int:
        """How many held-out groups may be taken now."""
        return self._kept.room() if self._kept else 0

    def keep_if_due(self) -> None:
        """Keep the version that the engine serves, if its turn has come and none is kept yet."""
        version = self._engine.version
        if self._every and not self._kept and version >= 0 and version % self._every == 0:
            self._kept = self._engine.pin()

    def let_go(self) -> list[Completion]:
        """Keep no version any more; the prefixes of what was not done on it."""
        left = self._kept.park() if self._kept else []
        self._kept = None
        return left

    def takes(self, work: Work) -> bool:
        """Whether the weights that it needs are here."""
        return work.prompt.pin in (None, self.pinned)

    def add(self, work: Work) -> None:
        """Begin with it. Raises Refused where it can never be done."""
        engine = self._engine if work.prompt.pin is None else self._kept
        assert engine, "held-out work is begun on the weights that it is pinned to"
        engine.add(work)

    def drop(self, group: str) -> None:
        """Forget every sequence of a group."""
        for engine in self._all:
            engine.drop(group)

    def step(self) -> tuple[list[Completion], StepTimes]:
        """A forward pass of each that has work; who finished, and what it took in all."""
        done: list[Completion] = []
        times: list[StepTimes] = []
        for engine in self._all:
            if engine.busy:
                done += engine.step()
                times.append(engine.last_step)
        return done, StepTimes(
            times[-1].ended,
            sum(one.seconds for one in times),
            any(one.prefill for one in times),
            sum(one.rows for one in times),
        )

    def prefixes(self) -> list[Completion]:
        """Of every member that has a token."""
        return [prefix for engine in self._all for prefix in engine.prefixes()]

    def park(self) -> list[Completion]:
        """The prefixes; nothing is in flight afterwards."""
        return [prefix for engine in self._all for prefix in engine.park()]

    @property
    def _all(self) -> list[Engine]:
        return [self._engine, self._kept] if self._kept else [self._engine]

"""The golden sets of a service: before its first work, and again and again beside it.

What a set is, and how one line is asked, is in `golden`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.errors import ConfigError, SluiceError
from pipeline.verdicts import AT, Passing
from services.scoring.ensemble import Ensemble
from services.scoring.golden import Found, Known, ask, read_golden
from services.scoring.metrics import Numbers
from services.scoring.seats import Seat

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600.0
"""For a scorer that cannot be asked at the start, such as an endpoint that is down."""


class Line(NamedTuple):
    """A line of the set of a scorer, which is told by its place in the ensemble."""

    number: int
    known: Known


Asked = tuple[Line, Found]


class Golden:
    """`gate` before the first work, `watch` beside it; `trouble` says in one line what is wrong."""

    def __init__(self, ensemble: Ensemble, numbers: Numbers) -> None:
        """Reads the sets of the ensemble's scorers; raises ConfigError."""
        self._ensemble, self._numbers = ensemble, numbers
        self._lines = [
            Line(number, known)
            for number, seat in enumerate(ensemble.seats)
            if seat.term.golden
            for known in read_golden(seat.term.golden)
        ]
        self._wrong: dict[tuple[int, str], str] = {}
        self.trouble = "it starts"

    async def gate(self) -> None:
        """Returns once every verdict is as expected. Raises ConfigError for one that is not.

        A fault that may pass, such as an endpoint's that is down, is no verdict: it is asked again,
        but a shadow is not waited for. Raises SluiceError where that takes longer than
        PATIENCE_SECONDS.
        """
        todo, last = self._lines, time.monotonic() + PATIENCE_SECONDS
        for number in itertools.count():
            asked = [*zip(todo, await asyncio.gather(*map(self._ask, todo)), strict=True)]
            self._refuse([(line, one) for line, one in asked if not (one.is_right or passes(one))])
            if not (late := [(line, one) for line, one in asked if self._holds_up(line, one)]):
                break
            self.trouble = f"golden set: {self._told(*late[0])}"
            if time.monotonic() > last:
                raise SluiceError(f"{self.trouble}; it did not pass in {PATIENCE_SECONDS:.0f} s")
            log.warning("%s; %d to ask again", self.trouble, len(late))
            todo = [line for line, _ in late]
            faults = [one.fault for _, one in late]
            await asyncio.sleep(max(f.pause(number) for f in faults if isinstance(f, Passing)))
        self.trouble = ""

    async def watch(self) -> None:
        """For as long as there is something to watch. Raises SluiceError without workers."""
        await asyncio.gather(*map(self._watch, {line.number for line in self._lines}))

    async def _watch(self, number: int) -> None:
        """One scorer's set, a line at a time, so that work goes on."""
        lines = [line for line in self._lines if line.number == number]
        while minutes := self._seat(lines[0]).term.golden_minutes:
            await asyncio.sleep(60 * minutes)
            for line in lines:
                self._note(line, await self._ask(line))

    def _seat(self, line: Line) -> Seat:
        return self._ensemble.seats[line.number]

    async def _ask(self, line: Line) -> Found:
        return await ask(self._seat(line).ask, line.known)

    def _holds_up(self, line: Line, found: Found) -> bool:
        return passes(found) and not self._seat(line).term.is_shadow

    def _refuse(self, wrong: Sequence[Asked]) -> None:
        """Raises ConfigError for the scorer of the first, if there is one."""
        if not wrong:
            return
        number = wrong[0][0].number
        mine = [found for line, found in wrong if line.number == number]
        size = sum(line.number == number for line in self._lines)
        path = self._seat(wrong[0][0]).term.golden
        rule = f"verdicts that differ: {len(mine)} of {size}, {mine[0]}"
        remedy = f"mend the scorer or the file; `sluice score test … --golden {path}` shows all"
        raise ConfigError(f"{AT}[{number}].golden", path, rule=rule, remedy=remedy)

    def _note(self, line: Line, found: Found) -> None:
        """A change is told once, a fault that may pass is none."""
        key = line.number, str(line.known.id)
        if passes(found) or found.is_right == (key not in self._wrong):
            return
        if found.is_right:
            del self._wrong[key]
            log.info("golden verdict is right again: %s", self._told(line, found))
        else:
            self._wrong[key] = self._told(line, found)
            log.error("golden verdict has changed: %s", self._wrong[key])
        self._numbers.golden_changes.inc()
        self._numbers.golden_differences.set(len(self._wrong))
        first = next(iter(self._wrong.values()), "")
        more = f" and {len(self._wrong) - 1} more" if len(self._wrong) > 1 else ""
        self.trouble = f"golden set: {first}{more}" if first else ""

    def _told(self, line: Line, found: Found) -> str:
        return f"{self._seat(line).called}, {found}"


def passes(found: Found) -> bool:
    """Whether it is a fault of something outside that may be gone later."""
    return isinstance(found.fault, Passing)

"""From an answer to its score, by all scorers of a run, and what faults are.

How several scorers' verdicts become one is in `pipeline.verdicts`; where each scorer runs in
`seats`. A fault of any that is no shadow is the member's fault, and there is no reward then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from pipeline.errors import ConfigError
from pipeline.messages import Score
from pipeline.protocols import Answer, Verdict
from pipeline.run import Scoring
from pipeline.verdicts import Fault, Term, terms, total
from services.scoring.metrics import Numbers
from services.scoring.seats import Seat, seats_of, started


class Ensemble:
    """Started before it is asked, closed afterwards; asked for any number of answers at once."""

    def __init__(self, seats: Sequence[Seat], *, numbers: Numbers) -> None:
        """The scorers, each under a name of its own ("exact/1@5d41402a")."""
        self._seats, self._numbers = tuple(seats), numbers
        self._places = list(dict.fromkeys(seat.place for seat in seats))
        self._moved = asyncio.Event()

    @property
    def seats(self) -> tuple[Seat, ...]:
        """In the order of the run; with the versions of those in workers once it is started."""
        return self._seats

    def room(self, waiting: int, spare: int) -> int:
        """How many more answers all scorers together can take, while `waiting` are in hand.

        The one that is furthest behind decides: it may have as many as it grades at once, and
        `spare` at its door.
        """
        return min(seat.ask.room(waiting) for seat in self._seats) + spare

    def idles(self, waiting: int) -> bool:
        """Whether the scorer that is furthest behind has nothing to do."""
        last = min((seat.ask for seat in self._seats), key=lambda ask: ask.room(waiting))
        return last.ahead >= waiting

    def load(self, waiting: int) -> float:
        """Of the busiest scorer: the share of its slots that are taken."""
        return max(min(1.0, (waiting - s.ask.ahead) / s.ask.slots) for s in self._seats)

    async def moves(self, seconds: float) -> bool:
        """Whether one of the scorers gets done with an answer within the time."""
        self._moved.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), seconds)
        return self._moved.is_set()

    async def start(self) -> None:
        """All or none of the scorers; raises ConfigError where one cannot be started."""
        starts = [asyncio.ensure_future(place.start()) for place in self._places]
        results = await asyncio.gather(*starts, return_exceptions=True)
        errors = [error for error in results if isinstance(error, BaseException)]
        if errors:
            self._places = [p for p, done in zip(self._places, starts, strict=True) if _went(done)]
            await self.close()
            raise errors[0]
        try:
            self._seats = tuple(started(seat) for seat in self._seats)
        except ConfigError:
            await self.close()
            raise

    async def close(self) -> None:
        """Whatever is still being graded ends without a verdict."""
        await asyncio.gather(*(place.close() for place in self._places))

    async def __call__(self, answer: Answer) -> Score:
        """The score, all scorers asked side by side; a fault is a score with an error, never a
        reward.
        """
        plain = replace(answer, drawn=None)  # it may be large, and few have a use for it
        asked = []
        for seat in self._seats:
            asked.append(
                asyncio.ensure_future(self._verdict(seat, answer if seat.reads_drawn else plain))
            )
            asked[-1].add_done_callback(partial(self._goes_ahead, seat))
        try:
            return self._sum(await asyncio.gather(*asked))
        except Fault as fault:
            return self.fault(fault)
        finally:
            for seat, one in zip(self._seats, asked, strict=True):
                one.cancel()  # with a fault of one the others' verdicts are of no use
                seat.ask.ahead -= 1

    def fault(self, fault: Fault) -> Score:
        """The score of a member that cannot have a reward."""
        return Score(reward=None, scorer=self._scorer, error=str(fault))

    def _goes_ahead(self, seat: Seat, _: object) -> None:
        """It is done with an answer that others may still be at."""
        seat.ask.ahead += 1
        self._moved.set()

    async def _verdict(self, seat: Seat, answer: Answer) -> Verdict | None:
        """None for a fault of a shadow, which costs nothing."""
        try:
            verdict = await seat.ask(answer)
        except Fault as fault:
            self._numbers.faults.labels(scorer=seat.called, reason=fault.reason).inc()
            if not seat.term.is_shadow:
                raise
            return None
        self._numbers.judged(seat.called, verdict)
        return verdict

    def _sum(self, verdicts: Sequence[Verdict | None]) -> Score:
        pairs = [(seat, v) for seat, v in zip(self._seats, verdicts, strict=True) if v]
        counted = [(seat, v) for seat, v in pairs if not seat.term.is_shadow]
        whole = total([seat.term for seat, _ in counted], [v for _, v in counted])
        return Score(
            reward=whole.reward,
            outcome=whole.outcome,
            scorer=self._scorer,
            parts={seat.name: v.reward for seat, v in counted},
            shadow={seat.name: v.reward for seat, v in pairs if seat.term.is_shadow},
            teaching=whole.teaching,
        )

    @property
    def _scorer(self) -> str:
        return "+".join(seat.name for seat in self._seats)


def make_ensemble(scoring: Scoring, *, numbers: Numbers, policy: str = "") -> Ensemble:
    """The scorers of [scoring], nothing started yet; raises ConfigError for a wrong scorer.

    `policy` is where the run's model comes from.
    """
    return seated(terms(scoring.scorers), scoring, numbers=numbers, policy=policy)


def seated(
    found: Sequence[Term], scoring: Scoring, *, numbers: Numbers, policy: str = ""
) -> Ensemble:
    """The same for these scorers instead of those of [scoring], such as one to be looked at."""
    return Ensemble(seats_of(found, scoring, numbers=numbers, policy=policy), numbers=numbers)


def _went(start: asyncio.Future[None]) -> bool:
    return start.exception() is None

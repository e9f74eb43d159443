"""From an answer to its score, by all scorers of a run: where each one runs, and what faults are.

How several scorers' verdicts become one is in `pipeline.verdicts`. A fault of any is the member's
fault, and there is no reward then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from pipeline.families import SCORERS
from pipeline.messages import Score
from pipeline.plugins import build, check, find, name_of, options_of
from pipeline.protocols import Answer, Verdict
from pipeline.run import Scoring, Spec
from pipeline.verdicts import AT, Fault, Term, checked, raised, terms, total, version_of
from services.scoring.pool import Pool

SIDE_BY_SIDE = 64

Grade = Callable[[Answer], Awaitable[Verdict]]


class Seat(NamedTuple):
    """A scorer of the run: how it is called, its version, its part in the total, how it is asked.

    `number` is the pool's for it, and `reads_drawn` whether it is shown how tokens were drawn.
    """

    called: str
    version: str
    term: Term
    grade: Grade
    number: int | None
    reads_drawn: bool

    @property
    def name(self) -> str:
        """What stands in a score."""
        return f"{self.called}/{self.version}"


class Ensemble:
    """Started before it is asked, closed afterwards; asked for any number of answers at once."""

    def __init__(self, seats: Sequence[Seat], *, pool: Pool | None, slots: int) -> None:
        """The scorers, each under a name of its own ("exact/1"); `pool` runs some of them.

        `slots` is how many answers can be graded at once.
        """
        self._seats = tuple(seats)
        self.pool, self.slots = pool, slots

    @property
    def busy(self) -> int:
        """How many answers in hand keep all scorers at work: a worker's next one is at the door."""
        return self.slots if self.slots >= SIDE_BY_SIDE else 2 * self.slots

    async def start(self) -> None:
        """Raises ConfigError where a scorer cannot be started."""
        if self.pool:
            await self.pool.start()
            known = self.pool.versions
            self._seats = tuple(
                seat if seat.number is None else seat._replace(version=known[seat.number])
                for seat in self._seats
            )

    async def close(self) -> None:
        """Whatever is still being graded ends without a verdict."""
        if self.pool:
            await self.pool.close()

    async def __call__(self, answer: Answer) -> Score:
        """The score; a fault is a score with an error, never a reward."""
        try:
            plain = replace(answer, drawn=None)  # it may be large, and few have a use for it
            return self._sum(
                [await seat.grade(answer if seat.reads_drawn else plain) for seat in self._seats]
            )
        except Fault as fault:
            return self.fault(fault)

    def fault(self, fault: Fault) -> Score:
        """The score of a member that cannot have a reward."""
        return Score(reward=None, scorer=self._scorer, error=str(fault))

    def _sum(self, verdicts: Sequence[Verdict]) -> Score:
        whole = total([seat.term for seat in self._seats], verdicts)
        parts = {seat.name: v.reward for seat, v in zip(self._seats, verdicts, strict=True)}
        return Score(
            reward=whole.reward,
            outcome=whole.outcome,
            scorer=self._scorer,
            parts=parts,
            teaching=whole.teaching,
        )

    @property
    def _scorer(self) -> str:
        return "+".join(seat.name for seat in self._seats)


def make_ensemble(
    scoring: Scoring, *, on_replaced: Callable[[], None], policy: str = ""
) -> Ensemble:
    """The scorers of [scoring], nothing started yet; raises ConfigError for a wrong scorer.

    `policy` is where the run's model comes from.
    """
    seconds, found = scoring.timeout_seconds, terms(scoring.scorers)
    things = [(term.spec, _find(term.spec)) for term in found]
    plain = [spec for spec, thing in things if not is_async(thing)]
    workers = scoring.workers
    pool = None
    if plain:
        pool = Pool(
            plain,
            workers=workers,
            timeout_seconds=seconds,
            on_replaced=on_replaced,
            policy=policy,
        )
    slots = workers if len(plain) == len(things) else SIDE_BY_SIDE
    seats = []
    for called, term, (spec, thing) in zip(_names(things), found, things, strict=True):
        reads, version = getattr(thing, "reads_drawn", False), version_of(thing)
        if pool and not is_async(thing):
            number = plain.index(spec)
            seats.append(Seat(called, version, term, partial(pool.grade, number), number, reads))
        else:
            scorer = build(SCORERS, spec, at=AT, policy=policy)
            grade = partial(_on_the_loop, scorer, seconds)
            seats.append(Seat(called, version_of(scorer), term, grade, None, reads))
    return Ensemble(seats, pool=pool, slots=slots)


def is_async(thing: Any) -> bool:
    """Whether a function, or the `__call__` of a class or an object, is `async def`."""
    return inspect.iscoroutinefunction(thing) or inspect.iscoroutinefunction(thing.__call__)


def _find(spec: Spec) -> Callable[..., Any]:
    """Checked here, so that a mistake costs no process; a plain scorer is built in its worker."""
    thing: Callable[..., Any] = find(SCORERS, spec, AT)
    check(thing, options_of(spec), AT, given=frozenset({"policy"}))
    return thing


def _names(things: Sequence[tuple[Spec, Callable[..., Any]]]) -> list[str]:
    """Their names, and for the second of a name name#2: parts are told apart by it."""
    seen: Counter[str] = Counter()
    names = []
    for spec, _ in things:
        name = name_of(spec, AT)
        seen[name] += 1
        names.append(f"{name}#{seen[name]}" if seen[name] > 1 else name)
    return names


async def _on_the_loop(
    scorer: Callable[[Answer], Awaitable[object]], seconds: float, answer: Answer
) -> Verdict:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return checked(await scorer(answer))
    except (Fault, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:  # also SystemExit: one answer; the fault is counted by its reason
        raise Fault("timeout") if limit.expired() else raised(exc) from exc

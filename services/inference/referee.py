"""Outcomes of answers in this very process, each within the run's time limit.

Scoring proper has killable workers; here a hanging scorer is interrupted, which needs the main
thread, and one that takes the process down with it takes the evaluation down.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.protocols import Answer
from pipeline.verdicts import Fault, checked, raised

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 64
AGAIN_SECONDS = 1.0


class Referee:
    """Asks a scorer, plain or async; a fault is no outcome, as it is no reward in training."""

    def __init__(self, scorer: Callable[[Answer], object], *, seconds: float) -> None:
        self._scorer, self._seconds = scorer, seconds

    def outcomes(self, answers: Sequence[Answer]) -> list[float | None]:
        """In order; None where there was a fault, which is logged. In the main thread only."""
        verdicts = [self._ask(answer) for answer in answers]
        if any(inspect.isawaitable(verdict) for verdict in verdicts):
            verdicts = asyncio.run(self._await_all(verdicts))
        return [_outcome(verdict) for verdict in verdicts]

    def _ask(self, answer: Answer) -> object:
        """A verdict yet to be checked, or to be awaited, or a Fault."""
        try:
            with deadline(self._seconds):
                return self._scorer(answer)
        except Overdue:
            return Fault("timeout")
        except (Exception, SystemExit) as exc:  # one answer; counted by who asked
            return raised(exc)

    async def _await_all(self, verdicts: Sequence[object]) -> list[object]:
        turns = asyncio.Semaphore(SIDE_BY_SIDE)

        async def settle(verdict: object) -> object:
            if not isinstance(verdict, Awaitable):
                return verdict
            async with turns:
                return await self._await(verdict)

        return await asyncio.gather(*map(settle, verdicts))

    async def _await(self, verdict: Awaitable[object]) -> object:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await verdict
        except Exception as exc:  # one answer; counted by who asked
            return Fault("timeout") if limit.expired() else raised(exc)


class Overdue(BaseException):
    """Beyond what a scorer's own `except Exception` catches."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises Overdue in the block once the time is over, and again should it be caught there."""

    def ring(*_: object) -> None:
        raise Overdue

    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler)


def _outcome(verdict: object) -> float | None:
    try:
        if isinstance(verdict, Fault):
            raise verdict
        return checked(verdict).outcome
    except Fault as fault:
        log.warning("scorer_error=%s", fault)
        return None

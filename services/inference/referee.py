"""Outcomes of answers in this very process, each within the run's time limit.

Scoring proper has killable workers; here a hanging scorer is interrupted, which needs the main
thread, and one that takes the process down with it takes the evaluation down.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.protocols import Answer
from pipeline.verdicts import LAST_TRY_SECONDS, Fault, Passing, batch_of, checked, raised

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 64
AGAIN_SECONDS = 1.0


class Referee:
    """Asks a scorer of any kind; a fault is no outcome, as it is no reward in training."""

    def __init__(
        self,
        scorer: Callable[..., object],
        *,
        seconds: float,
        concurrency: int = 0,
        retries: int = 0,
    ) -> None:
        """`concurrency` is how many answers are with an async one at once, at most; 0: 64.

        `retries` is how often it is asked again where its fault may pass.
        """
        self._scorer, self._seconds, self._retries = scorer, seconds, retries
        self._concurrency = concurrency or SIDE_BY_SIDE

    def outcomes(self, answers: Sequence[Answer]) -> list[float | None]:
        """In order; None where there was a fault, which is logged. In the main thread only."""
        size = batch_of(self._scorer)
        verdicts = (
            [v for n in range(0, len(answers), size) for v in self._together(answers[n : n + size])]
            if size
            else [self._ask(answer) for answer in answers]
        )
        if any(inspect.isawaitable(verdict) for verdict in verdicts):
            verdicts = asyncio.run(self._await_all(answers, verdicts))
        return [_outcome(verdict) for verdict in verdicts]

    def _together(self, answers: Sequence[Answer]) -> list[object]:
        """Of a batch that fails as a whole each is asked alone, and one may be at fault."""
        found = self._ask([*answers])
        if isinstance(found, Sequence) and len(found) == len(answers):
            return [*found]
        if len(answers) == 1:
            return [found if isinstance(found, Fault) else Fault("bad_verdict", f"{found!r:.80}")]
        return [verdict for answer in answers for verdict in self._together([answer])]

    def _ask(self, answer: Answer | list[Answer]) -> object:
        """A verdict yet to be checked, or to be awaited, or a Fault."""
        try:
            with deadline(self._seconds):
                return self._scorer(answer)
        except Overdue:
            return Fault("timeout")
        except Fault as fault:
            return fault
        except (Exception, SystemExit) as exc:  # one answer; counted by who asked
            return raised(exc)

    async def _await_all(
        self, answers: Sequence[Answer], verdicts: Sequence[object]
    ) -> list[object]:
        turns = asyncio.Semaphore(self._concurrency)

        async def settle(answer: Answer, verdict: object) -> object:
            last = time.monotonic() + LAST_TRY_SECONDS
            for number in range(self._retries):
                async with turns:
                    verdict = await self._await(verdict)
                if not isinstance(verdict, Passing):
                    return verdict
                pause = verdict.pause(number)
                if time.monotonic() + pause > last:
                    return verdict
                await asyncio.sleep(pause)
                verdict = self._ask(answer)
            async with turns:
                return await self._await(verdict)

        return await asyncio.gather(*map(settle, answers, verdicts))

    async def _await(self, verdict: object) -> object:
        """A verdict yet to be checked, or a Fault; what is one already stays as it is."""
        if not isinstance(verdict, Awaitable):
            return verdict
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await verdict
        except Fault as fault:
            return fault
        except Exception as exc:  # one answer; counted by who asked
            return Passing(reason="timeout") if limit.expired() else raised(exc)


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

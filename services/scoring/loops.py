"""Async scorers, each on a loop in a process of its own, replaced when it no longer turns or dies.

So whatever such a scorer does, the scoring process goes on: its leases, its beat, its other
scorers. What the other process does is in `loop_worker`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict
from pipeline.run import Spec
from pipeline.verdicts import Fault
from services.scoring.frames import Job, Ready, Replies, Setup, read_reply
from services.scoring.process import Process
from services.scoring.running import NOBODY, Mark, page

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
GRACE_SECONDS = 5.0
"""For the reply of an answer whose time is over, where nothing tells what holds up the loop."""
LONE_FROM, MOST_LOST = 2, 3
"""An answer that was in hand when so many processes ended, by nobody knows whose fault, is asked
again alone; and not again when it ends another.
"""


@dataclass(eq=False)
class _Asked:
    job: Job
    verdict: asyncio.Future[Verdict]
    since: float | None = None  # when it was sent to the process that is up
    lost: int = 0

    def runs(self, since: float) -> float:
        """Seconds from then on, or from when it was sent."""
        return 0.0 if self.since is None else time.monotonic() - max(since, self.since)


class _Ended(Exception):
    """The process must be replaced: its fault, and whose code ran, by the number of the answer."""

    def __init__(self, fault: Fault, number: int) -> None:
        self.fault, self.number = fault, number
        super().__init__(str(fault))


class Loop:
    """Any number of answers are graded at once, each with a time limit of its own.

    An answer that keeps the loop from turning for longer than it may take, or ends its process, is
    known by the mark: it has the fault, and all others in hand are asked again.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        called: str,
        memory_bytes: int,
        on_replaced: Callable[[], None] = lambda: None,
        policy: str = "",
    ) -> None:
        """`memory_bytes` of its process; `policy` is where the run's model comes from."""
        self._setup = Setup(specs=(spec,), memory_bytes=memory_bytes, policy=policy, is_async=True)
        self._called, self._on_replaced = called, on_replaced
        self.ready = Ready()
        self._numbers = itertools.count(NOBODY + 1)
        self._asked: dict[int, _Asked] = {}
        self._process: Process | None = None
        self._error: SluiceError | None = None

    async def start(self) -> None:
        """Its process up, the scorer built in it; raises ConfigError where it cannot be."""
        self._page = page()
        self._mark = Mark(self._page)
        try:
            self._process = await self._begin()
        except BaseException:
            self._drop_page()
            raise
        self.ready = self._process.ready
        self._serving = asyncio.create_task(self._serve(self._process))

    async def grade(self, scorer: int, answer: Answer, seconds: float) -> Verdict:
        """Of the only scorer, 0; raises Fault, or SluiceError without a process."""
        assert self.ready.versions, "it is started before it is asked"
        if self._error:
            raise self._error
        number = next(self._numbers)
        job = Job(scorer, (answer,), number, seconds)
        asked = _Asked(job, asyncio.get_running_loop().create_future())
        self._asked[number] = asked
        self._send(asked)
        try:
            return await asked.verdict
        except asyncio.CancelledError:
            if self._process:
                self._process.send(Job(0, (), number))
            raise
        finally:
            del self._asked[number]
            if asked.lost >= LONE_FROM:
                self._send(*self._asked.values())

    async def close(self) -> None:
        """Kill its process, whatever it does."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        if self._process:
            await self._end(self._process)
        self._drop_page()

    def _send(self, *those: _Asked) -> None:
        """Now, or once there is a process again, or no answer any more that must be alone."""
        if self._process is None:
            return
        waiting = [asked for asked in those if asked.since is None and not asked.verdict.done()]
        lone = [a for a in self._asked.values() if a.lost >= LONE_FROM and not a.verdict.done()]
        if lone:
            waiting = lone[:1] if all(a.since is None for a in self._asked.values()) else []
        for asked in waiting:
            asked.since = time.monotonic()
            self._process.send(asked.job)

    async def _serve(self, process: Process) -> None:
        while True:
            try:
                await self._listen(process)
            except _Ended as ended:
                try:
                    process = await self._replace(process, ended)
                except SluiceError as exc:
                    self._fail_all(exc)
                    return
            except Exception as exc:  # all answers, which end the scoring process by its name
                error = SluiceError(f"an async scorer could not be served: {exc!r}")
                error.__cause__ = exc
                self._fail_all(error)
                return

    async def _listen(self, process: Process) -> None:
        """Raises _Ended."""
        while True:
            heard = asyncio.ensure_future(process.receive(Replies))
            try:
                while not (await asyncio.wait({heard}, timeout=LOOK_SECONDS))[0]:
                    self._look()
                self._settle(heard.result())
            except Fault as fault:
                raise _Ended(fault, self._mark.look().number) from fault
            finally:
                heard.cancel()

    def _look(self) -> None:
        """Raises _Ended where an answer keeps the loop from turning, or something does."""
        running = self._mark.look()
        asked = self._asked.get(running.number)
        runs = asked.runs(running.since) if asked else 0.0
        late = max((a.runs(0.0) - a.job.seconds for a in self._asked.values()), default=0.0)
        if asked and (runs > asked.job.seconds or min(runs, late) > GRACE_SECONDS):
            detail = f"it kept the loop of {self._called} from turning for {runs:.1f} s"
            raise _Ended(Fault("timeout", detail), running.number)
        if late > GRACE_SECONDS:
            raise _Ended(Fault("timeout", f"the loop of {self._called} does not turn"), NOBODY)

    def _settle(self, replies: Replies) -> None:
        asked, found = self._asked.get(replies.number), read_reply(replies.replies[0])
        if asked is None or asked.verdict.done():
            return
        if isinstance(found, Fault):
            asked.verdict.set_exception(found)
        else:
            asked.verdict.set_result(found)

    async def _replace(self, process: Process, ended: _Ended) -> Process:
        """Raises SluiceError."""
        self._process = None
        log.warning("scorer=%s answer=%d process ended: %s", self._called, ended.number, ended)
        self._on_replaced()
        await self._end(process)
        self._blame(ended)
        self._process = await self._begin()
        self._send(*self._asked.values())
        return self._process

    def _blame(self, ended: _Ended) -> None:
        """Who has the fault, and who only was there: all, where it is not known whose it is."""
        known = ended.number in self._asked
        for number, asked in self._asked.items():
            asked.lost += asked.since is not None and not known
            asked.since = None
            if (number == ended.number or asked.lost >= MOST_LOST) and not asked.verdict.done():
                asked.verdict.set_exception(ended.fault)

    async def _begin(self) -> Process:
        self._mark.end()
        return await Process.start(self._setup, self._page)

    async def _end(self, process: Process) -> None:
        process.close()
        await asyncio.to_thread(process.kill)

    def _fail_all(self, error: SluiceError) -> None:
        self._error = error
        for asked in self._asked.values():
            if not asked.verdict.done():
                asked.verdict.set_exception(error)

    def _drop_page(self) -> None:
        self._mark.close()
        os.close(self._page)

"""Workers for scorers that are plain functions, each replaced when it hangs or dies."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict
from pipeline.run import Spec
from pipeline.verdicts import Fault
from services.scoring.frames import Job, Ready, Reply, Setup, read_reply
from services.scoring.process import Process

FULL = "MemoryError"
"""What a worker's scorer raises whose memory is full, maybe of what it has kept: for ever, then."""


class _Task(NamedTuple):
    """One that is `alone` was in a batch that failed as a whole, by nobody knows whose fault."""

    scorer: int
    answer: Answer
    seconds: float
    verdict: asyncio.Future[Verdict]
    alone: bool = False


class Pool:
    """Up to `workers` answers are graded at once, or batches, each with a time limit of its own.

    Waiting for a worker does not count. A worker that exceeds the time, dies, or was lost while it
    idled is killed with all that it started, and a fresh one takes its place.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        *,
        workers: int,
        timeout_seconds: float,
        on_replaced: Callable[[], None] = lambda: None,
        memory_bytes: int | None = None,
        policy: str = "",
    ) -> None:
        """`memory_bytes` of each worker: by default, of half the machine's an equal share.

        `policy` is where the run's model comes from.
        """
        memory = memory_bytes or machine_bytes() // (2 * workers)
        self._setup = Setup(specs=tuple(specs), memory_bytes=memory, policy=policy)
        self.ready = Ready()
        self.workers, self._timeout_seconds = workers, timeout_seconds
        self._waiting: deque[_Task] = deque()
        self._come = asyncio.Semaphore(0)  # how many of them no slot has been woken for
        self._processes: set[Process] = set()
        self._slots: list[asyncio.Task[None]] = []
        self._on_replaced = on_replaced
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """All workers up, every scorer built in each; raises ConfigError where one cannot be."""
        starts = (self._start() for _ in range(self.workers))
        started = await asyncio.gather(*starts, return_exceptions=True)
        for process in started:
            if isinstance(process, BaseException):
                await self.close()
                raise process
            self.ready = process.ready
            self._slots.append(asyncio.create_task(self._serve(process)))

    async def grade(self, scorer: int, answer: Answer, seconds: float = 0.0) -> Verdict:
        """The verdict of a scorer, by its number; raises Fault, or SluiceError without workers.

        Its time limit, if it is not the pool's, is `seconds`.
        """
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._add(_Task(scorer, answer, seconds or self._timeout_seconds, verdict))
        return await verdict

    async def close(self) -> None:
        """Kill every worker, whatever it does."""
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for process in [*self._processes]:
            await self._end(process)

    def _add(self, task: _Task) -> None:
        self._waiting.append(task)
        self._come.release()

    async def _next(self) -> list[_Task]:
        """The oldest that waits; with a batched scorer also what waits for the same."""
        while True:
            await self._come.acquire()
            while self._waiting:  # none: it went with a batch, or nobody wants it any more
                first = self._waiting.popleft()
                if not first.verdict.done():
                    return [first, *self._beside(first)]

    def _beside(self, first: _Task) -> list[_Task]:
        batch = self.ready.batches[first.scorer]
        if batch <= 1 or first.alone:
            return []
        taken: list[_Task] = []
        left: deque[_Task] = deque()
        for task in self._waiting:
            fits = task.scorer == first.scorer and not task.alone and len(taken) < batch - 1
            (taken if fits and not task.verdict.done() else left).append(task)
        self._waiting = left
        return taken

    async def _serve(self, process: Process) -> None:
        """One slot. Where a new worker cannot be started, every answer hears of it."""
        while True:
            tasks = await self._next()
            try:
                if process.dead:  # it was lost while it idled, and not by this answer
                    process = await self._replace(process)
                if not await self._grade(process, tasks):
                    process = await self._replace(process)
            except SluiceError as exc:
                _fail(tasks, exc)
            except Exception as exc:  # one answer, which ends the scoring process by its name
                error = SluiceError(f"a scoring worker could not be served: {exc!r}")
                error.__cause__ = exc
                _fail(tasks, error)

    async def _grade(self, process: Process, tasks: Sequence[_Task]) -> bool:
        """Whether the worker is still good afterwards."""
        answers = tuple(task.answer for task in tasks)
        job = Job(tasks[0].scorer, answers, next(self._numbers))
        try:
            replies = (await process.grade(job, tasks[0].seconds)).replies
        except Fault as fault:
            self._part(tasks, fault)
            return False
        if len(replies) == len(tasks):
            for task, reply in zip(tasks, replies, strict=True):
                _settle(task, reply)
        else:
            self._part(tasks, Fault(replies[0].fault, replies[0].detail))
        return not any(reply.detail.startswith(FULL) for reply in replies)

    def _part(self, tasks: Sequence[_Task], fault: Fault) -> None:
        """One answer has the fault; of a batch each is asked alone, so that only one has it."""
        if len(tasks) == 1:
            _fail(tasks, fault)
            return
        for task in tasks:
            self._add(task._replace(alone=True))

    async def _start(self) -> Process:
        process = await Process.start(self._setup)
        self._processes.add(process)
        return process

    async def _replace(self, process: Process) -> Process:
        self._on_replaced()
        await self._end(process)
        return await self._start()

    async def _end(self, process: Process) -> None:
        process.close()
        await asyncio.to_thread(process.kill)
        self._processes.discard(process)


def _settle(task: _Task, reply: Reply) -> None:
    found = read_reply(reply)
    if isinstance(found, Fault):
        _fail([task], found)
    elif not task.verdict.done():
        task.verdict.set_result(found)


def _fail(tasks: Sequence[_Task], error: Exception) -> None:
    for task in tasks:
        if not task.verdict.done():
            task.verdict.set_exception(error)


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

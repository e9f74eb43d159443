"""Workers for scorers that are plain functions, each replaced when it hangs or dies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict
from pipeline.run import Spec
from pipeline.verdicts import Fault
from services.scoring.frames import Job, Reply, Setup
from services.scoring.process import Process

QUEUE_PER_WORKER = 4


class _Task(NamedTuple):
    job: Job
    verdict: asyncio.Future[Verdict]


class Pool:
    """Up to `workers` answers are graded at once, each with `timeout_seconds` of its own.

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
        memory = memory_bytes or _machine_bytes() // (2 * workers)
        self._setup = Setup(specs=tuple(specs), memory_bytes=memory, policy=policy)
        self.versions: tuple[str, ...] = ()
        self._workers, self._timeout_seconds = workers, timeout_seconds
        self._queue: asyncio.Queue[_Task] = asyncio.Queue(QUEUE_PER_WORKER * workers)
        self._processes: set[Process] = set()
        self._slots: list[asyncio.Task[None]] = []
        self._on_replaced = on_replaced

    async def start(self) -> None:
        """All workers up, every scorer built in each; raises ConfigError where one cannot be."""
        starts = (self._start() for _ in range(self._workers))
        started = await asyncio.gather(*starts, return_exceptions=True)
        for process in started:
            if isinstance(process, BaseException):
                await self.close()
                raise process
            self.versions = process.versions
            self._slots.append(asyncio.create_task(self._serve(process)))

    async def grade(self, scorer: int, answer: Answer) -> Verdict:
        """The verdict of a scorer, by its number; raises Fault, or SluiceError without workers."""
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Task(Job(scorer, answer), verdict))
        return await verdict

    async def close(self) -> None:
        """Kill every worker, whatever it does."""
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)
        for process in [*self._processes]:
            await self._end(process)

    async def _serve(self, process: Process) -> None:
        """One slot. Where a new worker cannot be started, every answer hears of it."""
        while True:
            task = await self._queue.get()
            try:
                if process.dead:  # it was lost while it idled, and not by this answer
                    process = await self._replace(process)
                if not task.verdict.done() and not await self._grade(process, task):
                    process = await self._replace(process)
            except SluiceError as exc:
                _fail(task, exc)
            except Exception as exc:  # one answer, which ends the scoring process by its name
                error = SluiceError(f"a scoring worker could not be served: {exc!r}")
                error.__cause__ = exc
                _fail(task, error)

    async def _grade(self, process: Process, task: _Task) -> bool:
        """Whether the worker is still good afterwards."""
        try:
            reply = await process.grade(task.job, self._timeout_seconds)
        except Fault as fault:
            _fail(task, fault)
            return False
        if reply.reason:
            _fail(task, Fault(reply.reason, reply.detail))
        elif not task.verdict.done():
            task.verdict.set_result(_verdict(reply))
        return True

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


def _verdict(reply: Reply) -> Verdict:
    return Verdict(reward=reply.reward, outcome=reply.outcome, teaching=reply.teaching)


def _fail(task: _Task, error: Exception) -> None:
    if not task.verdict.done():
        task.verdict.set_exception(error)


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

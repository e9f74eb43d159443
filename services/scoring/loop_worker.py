"""What a worker does whose scorer is async: many answers at once, on the loop of its main thread.

Every task that works for an answer says so in the mark before each of its steps, also one that the
scorer starts: so a step that never ends is known by its answer, from outside.
"""

from __future__ import annotations

import asyncio
import os
import socket
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any

from pipeline.protocols import Answer
from pipeline.verdicts import Fault, Passing, checked, raised
from services.scoring.frames import (
    HEADER_BYTES,
    Job,
    Replies,
    Reply,
    length,
    pack,
    reply_of,
    unpack,
)
from services.scoring.running import NOBODY, Mark
from services.scoring.traces import raised_here

Scorer = Callable[[Answer], Awaitable[object]]

_answer: ContextVar[int] = ContextVar("answer", default=NOBODY)


def serve(link: socket.socket, scorer: Scorer, mark: Mark) -> None:
    """Until the socket is closed; then the process ends, whatever is still at work."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_task_factory(_factory(mark))
        runner.run(_Desk(scorer).serve(link))
        os._exit(0)


class _Desk:
    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._works: dict[int, asyncio.Task[Reply]] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def serve(self, link: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=link)
        while payload := await _receive(reader):
            job = unpack(payload, Job)
            if job.answers:
                task = asyncio.create_task(self._settle(job, writer))
                self._sent.add(task)
                task.add_done_callback(self._sent.discard)
            elif work := self._works.get(job.number):
                work.cancel()

    async def _settle(self, job: Job, writer: asyncio.StreamWriter) -> None:
        """A scorer that will not be cancelled does not keep its answer from being a time-out."""
        _answer.set(job.number)
        work = self._works[job.number] = asyncio.create_task(_grade(self._scorer, job.answers[0]))
        try:
            await asyncio.wait({work}, timeout=job.seconds)
            reply = _reply_of(work)
            work.cancel()
        finally:
            del self._works[job.number]
        writer.write(pack(Replies((reply,), job.number)))


_OVERDUE = reply_of(Passing(reason="timeout"))


def _reply_of(work: asyncio.Task[Reply]) -> Reply:
    """Whatever became of it: an answer without a reply would hold up the loop."""
    if not work.done() or work.cancelled():
        return _OVERDUE
    exc = work.exception()
    return reply_of(raised(exc)) if exc else work.result()


async def _grade(scorer: Scorer, answer: Answer) -> Reply:
    try:
        return reply_of(checked(await scorer(answer)))
    except Fault as fault:
        return reply_of(fault)
    except GeneratorExit:
        raise
    except BaseException as exc:  # also SystemExit: one answer; counted by the scoring process
        return reply_of(raised_here(exc))


async def _receive(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end."""
    try:
        return await reader.readexactly(length(await reader.readexactly(HEADER_BYTES)))
    except asyncio.IncompleteReadError:
        return b""


def _factory(mark: Mark) -> Any:
    def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        number = _answer.get()
        return asyncio.Task(_marked(work, number, mark) if number else work, loop=loop, **more)

    return make


async def _marked(work: Coroutine[Any, Any, Any], number: int, mark: Mark) -> Any:
    return await _steps(work, number, mark)


@types.coroutine
def _steps(work: Coroutine[Any, Any, Any], number: int, mark: Mark) -> Generator[Any, Any, Any]:
    """Drives the coroutine as `await` would."""
    go, sent = work.send, None
    while True:
        mark.begin(number)
        try:
            waits_for = go(sent)
        except StopIteration as done:
            return done.value
        finally:
            mark.end()
        try:
            go, sent = work.send, (yield waits_for)
        except BaseException as exc:  # the loop's, for the scorer to see
            go, sent = work.throw, exc

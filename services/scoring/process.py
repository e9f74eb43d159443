"""The scoring process's end of one worker: start it, speak with it, end it.

Between the two stands a keeper (`keeper.py`), which ends whatever the worker has started with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.errors import ConfigError, SluiceError
from pipeline.serve import REDIS_VARIABLE
from pipeline.verdicts import Fault
from services.scoring.frames import (
    HEADER_BYTES,
    F,
    Job,
    Ready,
    Replies,
    Setup,
    length,
    pack,
    unpack,
)
from services.scoring.keeper import BY_SIGNAL

log = logging.getLogger(__name__)

START_SECONDS = 60.0
KILL_SECONDS = 10.0
WORKER = "services.scoring.worker"
KEEPER = Path(__file__).with_name("keeper.py")


class Process:
    """A worker that is up, under its keeper, with everything that its scorers may have started."""

    def __init__(
        self,
        keeper: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._keeper, self._reader, self._writer = keeper, reader, writer
        self._fell = False  # it ended by itself, or by a hand that is not ours
        self._is_over = False
        self.ready = Ready()

    @classmethod
    async def start(cls, setup: Setup, *shared: int) -> Process:
        """Shares these descriptors with it. Raises ConfigError where a scorer cannot be built,
        SluiceError without a process.
        """
        try:
            process = await cls._connected(shared)
        except OSError as exc:
            raise SluiceError(f"a scoring worker cannot be started: {exc}") from exc
        try:
            await process._set_up(setup)
        except BaseException:
            process.kill()
            process.close()
            raise
        return process

    @classmethod
    async def _connected(cls, shared: tuple[int, ...]) -> Process:
        """Raises OSError where descriptors, memory or processes have run out."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                return cls(_spawn(theirs.fileno(), *shared), reader, writer)
            except OSError:
                writer.close()
                raise

    @property
    def dead(self) -> bool:
        """Whether it is known to have ended, or its keeper has, without whom it ends."""
        return self._reader.at_eof() or self._keeper.poll() is not None

    async def grade(self, job: Job, seconds: float) -> Replies:
        """Its replies; a Fault (timeout, crashed) leaves a process that must be killed."""
        replies = await self._within(seconds, job, Replies)
        if replies.number != job.number:
            raise Fault("crashed", "its reply is to another answer")
        return replies

    def send(self, frame: Struct) -> None:
        """Without waiting: where nobody reads it any more, `receive` is who says so."""
        self._writer.write(pack(frame))

    async def receive(self, kind: type[F]) -> F:
        """The next frame; a Fault (crashed) leaves a process that must be killed."""
        try:
            size = length(await self._reader.readexactly(HEADER_BYTES))
            return _read(await self._reader.readexactly(size), kind)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            self._fell = True
            raise Fault("crashed") from exc

    def kill(self) -> None:
        """End it and what it started, and wait for it: no zombie stays. Safe in any thread."""
        if self._is_over:
            return
        self._is_over = True
        self._keeper.terminate()
        self._keeper.send_signal(signal.SIGCONT)  # it may have been stopped
        try:
            status = self._keeper.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:  # the kernel holds the worker, in a call that never ends
            log.error("worker=%d does not die", self._keeper.pid)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._keeper.pid, signal.SIGKILL)
        else:
            status = BY_SIGNAL - status if status > BY_SIGNAL else status
            how = f"ended status={status}" if status or self._fell else "dismissed"
            log.info("worker=%d %s", self._keeper.pid, how)

    def close(self) -> None:
        """Give up the socket; in the loop's own thread."""
        self._fell = self._fell or self.dead
        self._writer.close()

    async def _set_up(self, setup: Setup) -> None:
        try:
            ready = await self._within(START_SECONDS, setup, Ready)
        except Fault as fault:
            raise SluiceError(f"a scoring worker cannot be started: {fault}") from fault
        if ready.where:
            raise ConfigError(ready.where, None, rule=ready.rule, remedy=ready.remedy)
        self.ready = ready

    async def _within(self, seconds: float, frame: Struct, kind: type[F]) -> F:
        try:
            async with asyncio.timeout(seconds):
                self.send(frame)
                with suppress(ConnectionError):  # it may have answered before it ended
                    await self._writer.drain()
                return await self.receive(kind)
        except TimeoutError as exc:
            raise Fault("timeout") from exc


def _read(payload: bytes, kind: type[F]) -> F:
    """A scorer that writes to its worker's socket garbles the replies after it as well."""
    try:
        return unpack(payload, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise Fault("crashed", "its reply cannot be read") from exc


def _spawn(link: int, *shared: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter: a fork of a process with threads could hang before it began."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # A scorer is a stranger, and the URL may hold a password.
    environment = {key: text for key, text in os.environ.items() if key != REDIS_VARIABLE}
    numbers = map(str, (link, os.getpid(), *shared))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), WORKER, *numbers],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a scorer prints goes where the logs go
        pass_fds=(link, *shared),
        start_new_session=True,
        env={**environment, "PYTHONPATH": path},
    )

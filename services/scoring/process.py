"""The scoring process's end of one worker: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import msgspec

from pipeline.errors import ConfigError, SluiceError
from pipeline.serve import REDIS_VARIABLE
from pipeline.verdicts import Fault
from services.scoring.frames import (
    HEADER_BYTES,
    F,
    Job,
    Ready,
    Reply,
    Setup,
    length,
    pack,
    unpack,
)

log = logging.getLogger(__name__)

START_SECONDS = 60.0
KILL_SECONDS = 10.0


class Process:
    """A worker that is up, and everything that its scorers may have started: one group."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child, self._reader, self._writer = child, reader, writer
        self._fell = False  # it ended by itself, or by a hand that is not ours
        self.versions: tuple[str, ...] = ()

    @classmethod
    async def start(cls, setup: Setup) -> Process:
        """Raises ConfigError where a scorer cannot be built, SluiceError without a process."""
        try:
            process = await cls._connected()
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
    async def _connected(cls) -> Process:
        """Raises OSError where descriptors, memory or processes have run out."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                return cls(_spawn(theirs.fileno()), reader, writer)
            except OSError:
                writer.close()
                raise

    @property
    def dead(self) -> bool:
        """Whether it is known to have ended."""
        return self._reader.at_eof()

    async def grade(self, job: Job, seconds: float) -> Reply:
        """Its verdict; a Fault (timeout, crashed) leaves a process that must be killed."""
        return _read(await self._ask(pack(job), seconds), Reply)

    def kill(self) -> None:
        """End it and what it started, and wait for it: no zombie stays. Safe in any thread."""
        if self._child.returncode is not None:
            return  # its number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        try:
            status = self._child.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:  # the kernel holds it, in a call that never ends
            log.error("worker=%d does not die", self._child.pid)
        else:
            ours = status == -signal.SIGKILL and not self._fell
            how = "dismissed" if ours else f"ended status={status}"
            log.info("worker=%d %s", self._child.pid, how)

    def close(self) -> None:
        """Give up the socket; in the loop's own thread."""
        self._fell = self._fell or self.dead
        self._writer.close()

    async def _set_up(self, setup: Setup) -> None:
        try:
            ready = _read(await self._ask(pack(setup), START_SECONDS), Ready)
        except Fault as fault:
            raise SluiceError(f"a scoring worker cannot be started: {fault}") from fault
        if ready.where:
            raise ConfigError(ready.where, None, rule=ready.rule, remedy=ready.remedy)
        self.versions = ready.versions

    async def _ask(self, frame: bytes, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(frame)
                await self._writer.drain()
                size = length(await self._reader.readexactly(HEADER_BYTES))
                return await self._reader.readexactly(size)
        except TimeoutError as exc:
            raise Fault("timeout") from exc
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            self._fell = True
            raise Fault("crashed") from exc


def _read(payload: bytes, kind: type[F]) -> F:
    """A scorer that writes to its worker's socket garbles the replies after it as well."""
    try:
        return unpack(payload, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise Fault("crashed", "its reply cannot be read") from exc


def _spawn(link: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter: a fork of a process with threads could hang before it began."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # A scorer is a stranger, and the URL may hold a password.
    environment = {key: text for key, text in os.environ.items() if key != REDIS_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "services.scoring.worker", str(link), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a scorer prints goes where the logs go
        pass_fds=(link,),
        start_new_session=True,
        env={**environment, "PYTHONPATH": path},
    )

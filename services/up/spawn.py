"""Child processes that cannot outlive us, nor can what they start. Which ones to start, and when
to end them, is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from services.up import guard

PR_SET_PDEATHSIG = 1
PARENT_LOST = 1

Popen = subprocess.Popen[bytes]


class Spawner:
    """Starts and reaps; while it is entered, a guard watches over us.

    Each child leads a session of its own, so that Ctrl-C reaches us alone and the order of the stop
    is ours. Should we die, even of kill -9, the kernel kills the children (on Linux), and the guard
    whatever is left in their sessions, elsewhere all of it. Sessions that a child makes are its
    own to end: those of the scoring workers, which the kernel kills with it, but not what a scorer
    had started by itself.
    """

    def __enter__(self) -> Spawner:
        self._guard = subprocess.Popen(
            [sys.executable, "-ES", guard.__file__], stdin=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate()

    def spawn(self, argv: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Popen:
        """Starts a process whose output is appended to `log` at once: its last words are last.

        The kernel ties it to the calling thread, which has to live as long as the child should.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                argv,
                env={"PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tie(os.getpid()),
            )
        self._tell(guard.WATCH, child.pid)
        return child

    def reap(self, child: Popen) -> int | None:
        """The exit code of a child that has ended, else None; what it had started ends with it."""
        if child.returncode is not None:
            return child.returncode
        if not _has_ended(child):
            return None
        self._tell(guard.FORGET, child.pid)
        _kill_group(child)
        return child.wait()

    def end(self, child: Popen, *, patience_seconds: float) -> int:
        """Asks the child to stop, and kills it where it does not; its exit code."""
        deadline = time.monotonic() + patience_seconds
        if self.reap(child) is None:
            child.terminate()
        while (code := self.reap(child)) is None:
            if time.monotonic() >= deadline:
                _kill_group(child)
            time.sleep(0.02)
        return code

    def _tell(self, word: str, pid: int) -> None:
        pipe = self._guard.stdin
        assert pipe is not None, "the guard listens at a pipe"
        with contextlib.suppress(BrokenPipeError):  # without a guard there is still the kernel
            pipe.write(f"{word} {pid}\n".encode())
            pipe.flush()


def _has_ended(child: Popen) -> bool:
    """Leaves it a zombie, whose number is nobody else's yet, where the system can (not macOS)."""
    if sys.platform == "linux":
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return child.poll() is not None


def _kill_group(child: Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is empty, or all zombies
        os.killpg(child.pid, signal.SIGKILL)


def last_line(log: Path, tail_bytes: int = 8192, *, begins: str = "") -> str:
    """The last line of a log that says something and `begins` so, or an empty string."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - tail_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    said = (line.strip() for line in reversed(lines))
    return next((line for line in said if line and line.startswith(begins)), "")


def tie(parent: int) -> Callable[[], None] | None:
    """What the child does before exec. Everything is looked up here: after fork is too late."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    getppid, leave = os.getppid, os._exit

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if getppid() != parent:  # it died between the fork and the line above
            leave(PARENT_LOST)

    return tie

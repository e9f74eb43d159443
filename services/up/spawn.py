"""Child processes that cannot outlive us, and the end of one. Which ones to start is not here."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PARENT_LOST = 1


def spawn(
    argv: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Starts a process that the kernel kills when we die, even of kill -9 (on Linux).

    It leads a session of its own, so that Ctrl-C reaches us alone and the order of the stop is
    ours. Its output is appended to `log`. The kernel ties it to the calling thread: call this from
    one that lives as long as the process should.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_tie(os.getpid()),
        )


def reap(child: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a child that has ended, else None; what it had started ends with it."""
    if child.returncode is not None:
        return child.returncode
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    # While it is a zombie its number cannot be given to another, so this hits its session only.
    os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def end(child: subprocess.Popen[bytes], *, patience_seconds: float) -> int:
    """Asks the child to stop, and kills it where it does not; its exit code."""
    deadline = time.monotonic() + patience_seconds
    if reap(child) is None:
        child.terminate()
    while (code := reap(child)) is None:
        if time.monotonic() >= deadline:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()
        time.sleep(0.02)
    return code


def last_line(log: Path, tail_bytes: int = 8192) -> str:
    """The last line of a log that says something, or an empty string."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - tail_bytes))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _tie(parent: int) -> Callable[[], None] | None:
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

"""The parent of one worker, which sees to it that whatever the worker starts ends with it.

Run as a file, `keeper.py MODULE LINK PARENT [MARK]`, by `process.py`: it imports nothing of Sluice,
so that it is small and at once there. On Linux it is a subreaper: what a scorer leaves behind, also
in a session of its own, becomes a child of the keeper and is found among its children. Elsewhere
the worker's process group is all that is known.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TURN_SECONDS = 0.005
PATIENCE_SECONDS = 5.0
"""For what the kernel holds in a call that does not end."""
BY_SIGNAL = 128
"""Added to a signal's number where that ended the worker: an exit status is all we can pass on."""


def main() -> None:
    """Until the worker has ended, or SIGTERM asks for its end; exits with its status, or 0."""
    module = sys.argv[1]
    link, parent, *marks = map(int, sys.argv[2:])
    signal.signal(signal.SIGCHLD, lambda *_: None)  # or some systems throw it away
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    adopt(parent)
    worker = _start(module, link, marks)
    for descriptor in (link, *marks):
        os.close(descriptor)  # the worker's end is open as long as the worker is
    status = _watch(worker)
    _end_all(worker)
    os._exit(status)


def adopt(parent: int) -> None:
    """Told by SIGTERM of the parent's end; orphans of what descends from here come here."""
    if sys.platform == "linux":
        call = ctypes.CDLL(None).prctl
        call(PR_SET_PDEATHSIG, signal.SIGTERM)
        call(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _start(module: str, link: int, marks: list[int]) -> int:
    """The worker, in a group of its own."""
    numbers = map(str, (link, os.getpid(), *marks))
    command = [sys.executable, "-u", "-m", module, *numbers]
    return os.posix_spawn(sys.executable, command, os.environ, setpgroup=0, setsigmask=())


def _watch(worker: int) -> int:
    """The exit status once it has ended; 0 where it is to be ended."""
    while True:
        if signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
            return 0
        while (ended := _reap())[0]:
            if ended[0] == worker:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else BY_SIGNAL - code


def _end_all(worker: int) -> None:
    """Until no child is left: as one dies, its own children become ours."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    while time.monotonic() < deadline:
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while _reap()[0]:
                pass
            time.sleep(TURN_SECONDS)
            continue
        return


def _reap() -> tuple[int, int]:
    """A child that has ended, and its status; 0 where none has. Raises ChildProcessError."""
    return os.waitpid(-1, os.WNOHANG)


def _children() -> list[int]:
    """Those that the kernel lists; where it lists none, the group alone was killed."""
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main()

"""A killable process that grades one answer at a time, in its main thread, so that alarms work.

Started by `process.py` as `python -m services.scoring.worker FD PARENT`. The scorer's code is a
stranger: it may print, hang, eat memory or end the process, and reaches the scoring process only
by frames over a socket of its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer
from pipeline.verdicts import AT, Fault, checked, raised, version_of
from services.scoring.frames import HEADER_BYTES, Job, Ready, Reply, Setup, length, pack, unpack

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until the socket is closed."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # what the scorer starts cannot hold it open
    _die_with(parent=int(sys.argv[2]))
    frames = link.makefile("rb")
    setup = unpack(_receive(frames), Setup)
    _bound_memory(setup.memory_bytes)
    scorers: list[Callable[[Answer], object]] = []
    link.sendall(pack(_build(setup, scorers)))
    while payload := _receive(frames):
        job = unpack(payload, Job)
        link.sendall(pack(_grade(scorers[job.scorer], job.answer)))


def _build(setup: Setup, scorers: list[Callable[[Answer], object]]) -> Ready:
    for spec in setup.specs:
        try:
            scorers.append(build(SCORERS, spec, at=AT, policy=setup.policy))
        except ConfigError as exc:
            return Ready(where=exc.where, rule=exc.rule, remedy=exc.remedy)
        except Exception as exc:  # one scorer's own constructor; the process ends with the message
            rule = f"cannot be started ({type(exc).__name__}: {exc})"
            return Ready(where=AT, rule=rule, remedy="mend the scorer or its options")
    return Ready(versions=tuple(version_of(scorer) for scorer in scorers))


def _grade(scorer: Callable[[Answer], object], answer: Answer) -> Reply:
    try:
        verdict = checked(scorer(answer))
    except (Exception, SystemExit) as exc:  # one answer; counted by the scoring process
        fault = exc if isinstance(exc, Fault) else raised(exc)
        return Reply(reason=fault.reason, detail=fault.detail)
    assert verdict.outcome is not None, "a checked verdict has an outcome"
    return Reply(verdict.reward, verdict.outcome, teaching=verdict.teaching)


def _receive(frames: BinaryIO) -> bytes:
    return frames.read(length(frames.read(HEADER_BYTES)))


def _die_with(parent: int) -> None:
    """On Linux even a scorer that hangs does not outlive the scoring process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _bound_memory(size: int) -> None:
    """What asks for more gets a MemoryError; and short of memory, the kernel kills this first."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()

"""A killable process that grades one answer at a time, or one batch, in its main thread, so that
alarms work.

Started by `keeper.py` as `python -m services.scoring.worker LINK PARENT [MARK]`; with a mark its
scorer is async, and `loop_worker` has the rest. The scorer's code is a stranger: it may print,
hang, eat memory or end the process, and reaches the scoring process only by frames over a socket of
its own.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build, name_of
from pipeline.protocols import Answer
from pipeline.verdicts import AT, Fault, batch_of, checked, version_of
from services.scoring import loop_worker
from services.scoring.frames import (
    HEADER_BYTES,
    Job,
    Ready,
    Replies,
    Reply,
    Setup,
    length,
    pack,
    reply_of,
    unpack,
)
from services.scoring.running import Mark
from services.scoring.traces import raised_here

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until the socket is closed."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # what the scorer starts cannot hold it open
    _die_with(parent=int(sys.argv[2]))
    frames = link.makefile("rb")
    setup = unpack(_receive(frames), Setup)
    _bound_memory(setup.memory_bytes)
    scorers: list[Callable[..., Any]] = []
    link.sendall(pack(_build(setup, scorers)))
    if setup.is_async and scorers:
        loop_worker.serve(link, scorers[0], _mark(int(sys.argv[3])))
    own = os.getpid()
    while payload := _receive(frames):
        job = unpack(payload, Job)
        replies = Replies(grade(scorers[job.scorer], job.answers), job.number)
        if os.getpid() != own:
            os._exit(0)  # a scorer's fork that came back: there is one worker to reply
        link.sendall(pack(replies))


def _mark(descriptor: int) -> Mark:
    mark = Mark(descriptor)
    os.close(descriptor)  # what the scorer starts does not see it
    return mark


def _build(setup: Setup, scorers: list[Callable[..., Any]]) -> Ready:
    for spec in setup.specs:
        try:
            scorers.append(build(SCORERS, spec, at=AT, policy=setup.policy))
        except ConfigError as exc:
            where = f"{exc.where} of {name_of(spec, AT)}"
            return Ready(where=where, rule=exc.rule, remedy=exc.remedy)
        except Exception as exc:  # one scorer's own constructor; the process ends with the message
            rule = raised_here(exc).detail
            where, remedy = f"{AT}, {name_of(spec, AT)}", "mend the scorer or its options"
            return Ready(where=where, rule=f"cannot be started ({rule})", remedy=remedy)
    return Ready(
        versions=tuple(version_of(scorer) for scorer in scorers),
        batches=tuple(batch_of(scorer) for scorer in scorers),
        seconds=tuple(float(getattr(scorer, "needs_seconds", 0.0)) for scorer in scorers),
    )


def grade(scorer: Callable[..., object], answers: Sequence[Answer]) -> tuple[Reply, ...]:
    """One reply for each answer, or a single fault of the call as a whole."""
    try:
        if not batch_of(scorer):
            return tuple(_reply(scorer(answer)) for answer in answers)
        found = scorer([*answers])
        if not isinstance(found, Sequence) or len(found) != len(answers):
            raise Fault("bad_verdict", f"{found!r:.80} is no list of {len(answers)} verdicts")
        return tuple(_reply(verdict) for verdict in found)
    except (Exception, SystemExit) as exc:  # one call; counted by the scoring process
        return (reply_of(exc if isinstance(exc, Fault) else raised_here(exc)),)


def _reply(answer: object) -> Reply:
    """Of a batch one answer may have a fault of its own."""
    try:
        return reply_of(answer if isinstance(answer, Fault) else checked(answer))
    except Fault as fault:
        return reply_of(fault)


def _receive(frames: BinaryIO) -> bytes:
    return frames.read(length(frames.read(HEADER_BYTES)))


def _die_with(parent: int) -> None:
    """On Linux even a scorer that hangs does not outlive the scoring process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _bound_memory(size: int) -> None:
    """Who asks for more gets a MemoryError; and short of memory, the kernel kills this first."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
    if sys.platform == "linux":
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()

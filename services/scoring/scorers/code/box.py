"""One sandbox that has something running in it: its output, and its end.

How it is set up is in `sandbox`.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from services.scoring.scorers.code.cgroup import Group
from services.scoring.scorers.code.limits import OUTPUT_BYTES, Limits

READ_BYTES = 65536
KILL_SECONDS = 5.0

Stop = Literal["ended", "timeout", "output"]


class Ended(NamedTuple):
    """How a sandbox ended: by itself, or why it was; as a shell gives it, its status."""

    stop: Stop
    status: int
    out: bytes
    err: bytes
    out_of_memory: bool


@dataclass
class Stream:
    """What comes out of a sandbox by one pipe, in all at most OUTPUT_BYTES."""

    descriptor: int
    kept: bytearray = field(default_factory=bytearray)
    open: bool = True

    def read(self) -> bool:
        """Whether there is still room for more."""
        part = os.read(self.descriptor, READ_BYTES)
        self.open = bool(part)
        room = OUTPUT_BYTES - len(self.kept)
        self.kept += part[:room]
        return len(part) <= room


class Box:
    """`child` is the bubblewrap outside, `init` a descriptor of the first process inside.

    With that process the kernel ends every other of its namespace, whatever session it is in.
    `ends` is all that it has, and gives up.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        init: int,
        *,
        streams: tuple[int, int],
        group: Group,
        ends: ExitStack,
    ) -> None:
        self._child, self.init, self._group, self._ends = child, init, group, ends
        self.out, self.err = map(Stream, streams)
        self.stop: Stop = "ended"

    @property
    def over(self) -> bool:
        """Whether all has ended, and all that was said is read."""
        return not (self.out.open or self.err.open) and _has_ended(self.init, 0)

    def kill(self, why: Stop) -> None:
        """End everything in it, at once."""
        if self.stop == "ended" and not _has_ended(self.init, 0):
            self.stop = why
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.init, signal.SIGKILL)

    def end(self, *, wait: float = 0.0) -> Ended:
        """Whatever still runs, after so many seconds, is killed; nothing is left afterwards."""
        _has_ended(self.init, wait)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.init, signal.SIGKILL)
        with self._ends:
            _has_ended(self.init, KILL_SECONDS)
            status = self._child.wait(KILL_SECONDS)
            memory = self._group.out_of_memory
        return Ended(self.stop, status, bytes(self.out.kept), bytes(self.err.kept), memory)


def watch(boxes: Sequence[Box], limits: Limits, *, until: float, paced: bool = False) -> None:
    """Until the first of them is over; or has taken `test_seconds`, or more output than is kept.

    `until` is a time by time.monotonic that none outlives. `paced`: each line of the first one's
    output begins the time of another test. All of them are killed where one goes too far.
    """
    first = boxes[0]
    with selectors.DefaultSelector() as selector:
        for box in boxes:
            for stream in (box.out, box.err):
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        selector.register(first.init, selectors.EVENT_READ, None)
        end = _end(limits, until)
        while not first.over:
            left = end - time.monotonic()
            if left <= 0:
                return _kill(boxes, "timeout")
            for key, _ in selector.select(left):
                if key.data is None:
                    selector.unregister(key.fileobj)
                elif not _read(key.data, selector):
                    return _kill(boxes, "output")
                elif paced and key.data is first.out:
                    end = _end(limits, until)


def _read(stream: Stream, selector: selectors.BaseSelector) -> bool:
    """Whether the stream has room for more."""
    room = stream.read()
    if not stream.open:
        selector.unregister(stream.descriptor)
    return room


def _end(limits: Limits, until: float) -> float:
    return min(until, time.monotonic() + limits.test_seconds)


def _kill(boxes: Sequence[Box], why: Stop) -> None:
    for box in boxes:
        box.kill(why)


def _has_ended(process: int, seconds: float) -> bool:
    """Whether the process of the descriptor ends in that time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * seconds))

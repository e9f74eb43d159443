"""A page that the scoring process shares with the process of an async scorer: whose code runs now.

It can be read while the other process is held up in whatever it does, in a call that lets no other
thread of it run too, and after it has died.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import time
from typing import NamedTuple

SIZE = 16
NUMBER, SINCE = (struct.Struct("<q"), 0), (struct.Struct("<d"), 8)
NOBODY = 0


class Running(NamedTuple):
    """The number of an answer whose code runs, or NOBODY, and since when (monotonic seconds)."""

    number: int
    since: float


def page() -> int:
    """The descriptor of a new page, for two processes to share; it has no name in any folder."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("mark")
    else:
        descriptor, name = tempfile.mkstemp()
        os.unlink(name)
    os.truncate(descriptor, SIZE)
    return descriptor


class Mark:
    """Written by the one process before and after each step of an answer, read by the other."""

    def __init__(self, descriptor: int) -> None:
        """Of the page."""
        self._page = mmap.mmap(descriptor, SIZE)

    def begin(self, number: int) -> None:
        """The number comes last: who reads it first never sees it with an older step's time."""
        SINCE[0].pack_into(self._page, SINCE[1], time.monotonic())
        NUMBER[0].pack_into(self._page, NUMBER[1], number)

    def end(self) -> None:
        """Nobody's code runs."""
        NUMBER[0].pack_into(self._page, NUMBER[1], NOBODY)

    def look(self) -> Running:
        """Both processes' clocks are the machine's."""
        (number,) = NUMBER[0].unpack_from(self._page, NUMBER[1])
        (since,) = SINCE[0].unpack_from(self._page, SINCE[1])
        return Running(number, since)

    def close(self) -> None:
        """The page stays where the other process has it."""
        self._page.close()

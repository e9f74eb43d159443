"""Two sides that take turns on one machine, so that what slows the machine slows both.

A side is a process; while it is not its turn it is stopped by a signal. A machine whose
speed wanders from second to second then cannot favour either.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

TURN_SECONDS = 0.5


class Turns:
    """`seconds` has the time that each side was running, until it was `done`."""

    def __init__(self, sides: Mapping[str, int]) -> None:
        """The process of each side, in the order of their turns; both are stopped."""
        self._sides = sides
        self._done = {side: threading.Event() for side in sides}
        self.seconds = dict.fromkeys(sides, 0.0)
        for side in sides:
            self._signal(side, signal.SIGSTOP)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """They take turns inside the block, which has to say when each is `done`."""
        thread = threading.Thread(target=self._take, name="turns")
        thread.start()
        try:
            yield
        finally:
            for side in self._sides:
                self.done(side)
            thread.join()

    def done(self, side: str) -> None:
        """The side has done its work: it is stopped no more, and the other goes on alone."""
        self._done[side].set()

    def _take(self) -> None:
        while not all(done.is_set() for done in self._done.values()):
            for side, done in self._done.items():
                if not done.is_set():
                    self._turn(side, done)

    def _turn(self, side: str, done: threading.Event) -> None:
        self._signal(side, signal.SIGCONT)
        started = time.perf_counter()
        if not done.wait(TURN_SECONDS):
            self._signal(side, signal.SIGSTOP)
        self.seconds[side] += time.perf_counter() - started

    def _signal(self, side: str, number: int) -> None:
        os.kill(self._sides[side], number)

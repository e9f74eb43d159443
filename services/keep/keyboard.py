"""Keys as they are pressed, without a return: for a terminal that shows something meanwhile."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType


class Keyboard:
    """The terminal that standard input is; where it is none, nobody presses anything."""

    def __enter__(self) -> Keyboard:
        self._input = sys.stdin.fileno() if sys.stdin.isatty() else None
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def pressed(self, seconds: float) -> str:
        """What is pressed within so many seconds; nothing, if nothing is."""
        if self._input is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._input], [], [], seconds)[0]:
            return ""
        # A terminal that is gone is always ready, and has nothing to say: as good as a q.
        return os.read(self._input, 64).decode(errors="replace") or "q"

"""A process that outlives `sluice up` by a moment: whatever is left of its children, it kills.

It learns at its standard input whom to watch, a line each; the end of the input is the end of
`sluice up`, however that came. Run as a file: it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

WATCH, FORGET = "watch", "forget"


def watched(lines: Iterable[str]) -> set[int]:
    """The sessions that were to be watched at the end of the input."""
    left: set[int] = set()
    for line in lines:
        word, _, number = line.partition(" ")
        (left.add if word == WATCH else left.discard)(int(number))
    return left


def main() -> None:
    """Waits for the end of the input, then ends every process of the sessions that are left."""
    for session in watched(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    main()

"""Where a scorer raised: told in the log of its worker, once for each place and kind.

What the score says of it is `verdicts.raised`'s: the message alone.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

from pipeline.verdicts import Fault, raised

MOST_TOLD = 32

_told: set[tuple[str, str, int]] = set()


def raised_here(exc: BaseException) -> Fault:
    """The fault; its traceback goes to standard error the first time."""
    with suppress(Exception):  # its message is a stranger's, and memory may have run out
        _tell(exc)
    return raised(exc)


def _tell(exc: BaseException) -> None:
    frame = traceback.extract_tb(exc.__traceback__, limit=-1)[0]
    place = (type(exc).__name__, frame.filename, frame.lineno or 0)
    if place not in _told and len(_told) < MOST_TOLD:
        _told.add(place)
        traceback.print_exception(exc, limit=-8, file=sys.stderr)

"""From how a sandbox ended to why a test is passed or not."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from services.scoring.scorers.code.box import Ended
from services.scoring.scorers.code.reference import Run
from services.scoring.scorers.reasons import Why

SIGNALLED = 128
TOLD = {
    "right": Why.RIGHT,
    "wrong": Why.WRONG,
    "memory": Why.MEMORY,
    "crashed": Why.CRASHED,
}
"""By a checker; what is lost, the program's own end tells."""


def why_of_run(ended: Ended, run: Run) -> Why:
    """Of a test by its output. A program that failed is not right, whatever it has printed.

    White space at the ends of lines and empty lines at the end do not count.
    """
    if ended.stop != "ended" or ended.status:
        return _why_of_end(ended)
    printed = ended.out.decode(errors="replace")
    return Why.RIGHT if _lines(printed) == _lines(run.stdout) else Why.WRONG


def whys_of_checks(checker: Ended, program: Ended, number: int) -> Iterator[Why]:
    """Of each check: as the checker told, and where it did not, by what kept it from telling."""
    told = checker.out.decode(errors="replace").split()[:number]
    for word in told + ["lost"] * (number - len(told)):
        yield TOLD.get(word) or _why_of_loss(checker, program)


def _why_of_loss(checker: Ended, program: Ended) -> Why:
    for ended in (checker, program):
        if ended.stop != "ended" or ended.out_of_memory:
            return _why_of_end(ended)
    return _why_of_end(program) if program.status else Why.EXITED


def _why_of_end(ended: Ended) -> Why:
    """Of one that did not end well."""
    if ended.stop == "timeout" or ended.status == SIGNALLED + signal.SIGXCPU:
        return Why.TIMEOUT
    if ended.stop == "output":
        return Why.OUTPUT
    if ended.out_of_memory or b"\nMemoryError" in ended.err:
        return Why.MEMORY
    return Why.CRASHED


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]

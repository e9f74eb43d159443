"""How a run ended, in the words that the panel, the report and the exit code share."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pipeline.serve import EXIT_DONE, EXIT_FAILED


class Outcome(NamedTuple):
    """`reason` is one line, and empty where there is nothing to say."""

    word: Literal["done", "failed", "stopped", "running"]
    reason: str = ""
    code: int = EXIT_DONE


def told(stop: str, reason: str) -> Outcome:
    """What the trainer said of the run's end."""
    if stop == "done":
        return Outcome("done", reason)
    return Outcome("failed", reason, EXIT_FAILED)

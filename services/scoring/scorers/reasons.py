"""Why a verdict is what it is: the words that verdicts are counted by, the same for all scorers."""

from __future__ import annotations

from enum import StrEnum

from pipeline.protocols import Verdict


class Why(StrEnum):
    """The reason of a verdict."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_final_answer"
    HEDGED = "several_answers"
    NOT_UNDERSTOOD = "not_understood"
    TOO_LARGE = "too_large"
    NO_VALUE = "no_value"
    MALFORMED = "malformed"
    EMPTY = "empty_body"
    TOO_LONG = "too_long"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT = "output"
    EXITED = "exited_early"


class NoAnswer(Exception):
    """And why there is none."""

    def __init__(self, why: Why) -> None:
        self.why = why
        super().__init__(str(why))


def verdict(why: Why) -> Verdict:
    """1 for what is right, and 0 for all else."""
    return Verdict(reward=float(why is Why.RIGHT), reason=why)

"""What a scorer may answer, and what becomes of one that does not: a fault, never a reward."""

from __future__ import annotations

import math
from numbers import Real

from pipeline.protocols import Verdict

LONGEST_DETAIL = 200


class Fault(Exception):
    """An answer that got no verdict, and why.

    The reason, of few values, is what faults are counted by: timeout, raised, crashed, bad_verdict.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:LONGEST_DETAIL]
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


def raised(exc: BaseException) -> Fault:
    """The fault of a scorer that raised."""
    return Fault("raised", f"{type(exc).__name__}: {exc}")


def checked(answer: object) -> Verdict:
    """The scorer's answer as a verdict of two finite numbers; raises Fault otherwise."""
    if not isinstance(answer, Verdict):
        reward = _number(answer, "the reward")
        return Verdict(reward=reward, outcome=reward)
    reward = _number(answer.reward, "the reward")
    outcome = reward if answer.outcome is None else _number(answer.outcome, "the outcome")
    return Verdict(reward=reward, outcome=outcome)


def _number(value: object, what: str) -> float:
    if not isinstance(value, Real):
        raise Fault("bad_verdict", f"{what} is {value!r:.80}, of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Fault("bad_verdict", f"{what} is {number}")
    return number

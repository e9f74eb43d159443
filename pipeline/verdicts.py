"""What a scorer is shown and what it may answer, the same in scoring and in evaluation.

Where a scorer runs, and how long it may take, is theirs. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

import msgspec

from pipeline.messages import Completion, Prompt
from pipeline.protocols import Answer, Verdict

LONGEST_DETAIL = 200


class Fault(Exception):
    """An answer that got no verdict, and why.

    The reason, of few values, is what faults are counted by: timeout, raised, crashed, bad_verdict.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:LONGEST_DETAIL]
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


def answer_of(prompt: Prompt, completion: Completion, decode: Callable[[bytes], str]) -> Answer:
    """A member as its scorer sees it; `decode` turns ids (int32) into text.

    The prompt's text is that of its ids, and so what the policy read. Raises whatever `decode`
    does, and msgspec.DecodeError for a reference that is no JSON.
    """
    return Answer(
        text=decode(completion.ids),
        prompt=decode(prompt.ids),
        reference=msgspec.json.decode(prompt.reference),
        finish=completion.finish or "",
        task=prompt.task,
        ids=tuple(memoryview(completion.ids).cast("i")),
    )


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

"""Scorers that a run can name, good and bad."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Passing

running, most = 0, 0


def shown(answer: Answer) -> float:
    """1 where the answer is shown as scoring shows it."""
    seen = (answer.prompt, answer.reference, answer.task, answer.finish, len(answer.ids))
    return float(seen == ("a5b3=2", {"right": "a5b3,a5b3"}, "sort", "length", 6))


def by_text(answer: Answer) -> float | Verdict:
    """What the answer's text asks for."""
    match answer.text:
        case "hangs":
            while True:
                time.sleep(0.01)
        case "swallows":
            while True:
                try:
                    time.sleep(0.01)
                except Exception:
                    continue
        case "raises":
            raise ValueError("no such answer")
        case "exits":
            raise SystemExit(3)
        case "nan":
            return float("nan")
        case "shaped":
            return Verdict(reward=0.2, outcome=1.0)
    return float(answer.text)


async def by_text_async(answer: Answer) -> float:
    """The same, on a loop; counts how many are at it."""
    global running, most
    running += 1
    most = max(most, running)
    try:
        await asyncio.sleep(60 if answer.text == "hangs" else 0.05)
    finally:
        running -= 1
    return by_text(answer)  # type: ignore[return-value]


class Recovering:
    """Busy at the first try, and at every one for the answer "always"."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def __call__(self, answer: Answer) -> float:
        self.asked[answer.text] += 1
        if self.asked[answer.text] == 1 or answer.text == "always":
            raise Passing("busy")
        return float(answer.text)


def with_a_loop_of_its_own(answer: Answer) -> float:
    return asyncio.run(by_text_async(answer))


class InBatches:
    """Of each answer the number of those beside it, or what its text asks for."""

    batch = 3

    def __call__(self, answers: list[Answer]) -> list[float]:
        return [by_text(a) if a.text in ("raises", "nan") else float(len(answers)) for a in answers]

"""The verdicts of reasoning-gym, each by the data set that the task is from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import reasoning_gym

from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.places import behind_reasoning
from services.scoring.scorers.text.strings import compiled, last

TAGGED = r"(?s)<answer>(.*?)</answer>"


class ReasoningGym:
    """Its score for the answer in the text; the outcome is 1 for a full score, and else 0.

    The reference is the task's entry, as the data set `reasoning_gym` gives it. The answer is the
    last match of `extract`, or its first group where it has one: by default what stands between
    <answer> and </answer>; empty, the whole text. Only what follows the reasoning is looked at. A
    text without a match is worth 0.
    """

    version = reasoning_gym.__version__

    def __init__(self, *, extract: str = TAGGED) -> None:
        """Raises ConfigError for what is no pattern."""
        self._extract = compiled(extract, at="scoring.scorers.extract") if extract else None

    def __call__(self, answer: Answer) -> Verdict:
        """Raises whatever its verdict does, and for a reference that is no entry."""
        try:
            found = self._found(behind_reasoning(answer.text, answer.prompt))
        except NoAnswer as nothing:
            return verdict(nothing.why)
        if not found:
            return verdict(Why.NO_ANSWER)
        entry = answer.reference
        name = entry["metadata"]["source_dataset"]
        score = float(_score(name, msgspec.json.encode(entry.get("args", {})))(found, entry))
        full = score >= 1.0
        return Verdict(reward=score, outcome=float(full), reason=Why.RIGHT if full else Why.WRONG)

    def _found(self, text: str) -> str | None:
        if self._extract is None:
            return text.strip()
        return last(self._extract, text, min(self._extract.groups, 1))


@functools.lru_cache(maxsize=256)
def _score(name: str, args: bytes) -> Callable[[str, Any], float]:
    score: Callable[[str, Any], float] = reasoning_gym.create_dataset(
        name, size=1, seed=0, **msgspec.json.decode(args)
    ).score_answer
    return score

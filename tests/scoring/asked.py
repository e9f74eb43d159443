"""One answer, asked of a scorer as a run would build it."""

from __future__ import annotations

from typing import Any

from pipeline.families import SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import checked


def verdict(
    spec: Any, text: str, reference: object = None, *, prompt: str = "", finish: str = "stop"
) -> Verdict:
    """Raises whatever the scorer does."""
    answer = Answer(text=text, prompt=prompt, reference=reference, finish=finish)
    return checked(build(SCORERS, spec, at="scoring.scorers", policy="")(answer))


def told(*asked: Any, **more: Any) -> tuple[float, str]:
    """The reward and the reason."""
    found = verdict(*asked, **more)
    return found.reward, found.reason


def listed(rows: str) -> list[str]:
    r"""The cases of a table: parted by bars and lines; \n in one is a new line."""
    cases = (case.strip() for case in rows.replace("\n", "|").split("|"))
    return [case.replace(r"\n", "\n") for case in cases if case]

"""Mathematical equality, by math-verify, of a boxed answer and the reference.

It has no limit of time of its own: its library's alarm would make a wrong answer of a slow one.
The worker that it runs in is killed when the time is over.
"""

from __future__ import annotations

import functools
import logging
from importlib.metadata import version
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from pipeline.errors import SluiceError
from pipeline.protocols import Answer, Verdict

BOXES = (r"\boxed{", r"\fbox{")
DECIMALS = 12
CACHED_GOLDS = 1024

EQUAL = (
    ("42", "42"),
    ("8", "2^3"),
    ("1000", "10^3"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\frac{1}{12}", "0.0833333333333333"),
    (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
    ("1,-2", "-2,1"),
    ("[2,5)", "[2,5)"),
    ("13", r"\text{13}"),
    ("70000", r"\$70,000"),
)
UNEQUAL = (
    ("42", "41"),
    ("8", "2^4"),
    (r"\pm 2021", "2021"),
    (r"\frac{1}{2}", r"\frac13"),
    (r"1 - \frac{1}{e}", r"1 + \frac{1}{e}"),
    ("1331 and 1728", "1728"),
    ("(2,3)", "(3,2)"),
    ("(0,1)", "[0,1]"),
    ("n=3k", "3"),
    (r"\text{Yes}", r"\text{No}"),
)
"""What it must know before it grades anything: one that calls everything unequal is broken."""

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of each limit that is off


class Math:
    r"""1 where the last \boxed{…} or \fbox{…} of the text equals the reference, and else 0.

    No box, or one that was cut off, is no answer; neither is anything within <think> that was not
    closed. The reference, a formula in LaTeX without a box around it, comes first: equality in
    math-verify is not symmetric.
    """

    version = version("math-verify")

    def __init__(self) -> None:
        """Raises SluiceError where this installation gets one of the known pairs wrong."""
        for pairs, wanted in ((EQUAL, True), (UNEQUAL, False)):
            for gold, answer in pairs:
                if _equal(gold, answer) != wanted:
                    raise SluiceError(f"math-verify {self.version} is wrong: {gold} and {answer}")

    def __call__(self, answer: Answer) -> Verdict:
        """Raises whatever math-verify does, and ValueError for a reference that is no formula."""
        boxed = last_box(answer.text)
        return Verdict(reward=float(boxed is not None and _equal(str(answer.reference), boxed)))


def last_box(text: str) -> str | None:
    """What stands in the last box after the thinking; None without one, or where it stays open."""
    _, _, text = text.rpartition("</think>")
    start, box = max((text.rfind(box), box) for box in BOXES)
    if start < 0 or "<think>" in text:
        return None
    depth, start = 1, start + len(box)
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return None


def _equal(gold: str, answer: str) -> bool:
    return bool(
        verify(
            _gold(gold),
            _parsed(answer),
            float_rounding=DECIMALS,
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


@functools.lru_cache(maxsize=CACHED_GOLDS)
def _gold(gold: str) -> list[Any]:
    """All members of a group are held against one."""
    if parsed := _parsed(gold):
        return parsed
    raise ValueError(f"the reference is no formula: {gold!r:.80}")


def _parsed(formula: str) -> list[Any]:
    found: list[Any] = parse(
        rf"\boxed{{{formula}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found

r"""Where in a text its answer stands: in the last \boxed or \fbox behind the reasoning.

Boxes that are joined by "and" or commas are one list; joined by "or" and other words they are a
guess among several, and no answer.
"""

from __future__ import annotations

import re

from pipeline.protocols import Answer
from services.scoring.scorers.math.limits import ELEMENTS
from services.scoring.scorers.math.policies import UnboxedPolicy
from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.text.marks import last_mark
from services.scoring.scorers.text.places import LINKS, Place, behind_reasoning, boxes, is_guess


def answer_in(answer: Answer, unboxed: UnboxedPolicy) -> str:
    """The formula; raises NoAnswer."""
    text = behind_reasoning(answer.text, answer.prompt)
    if found := boxes(text):
        return _last(found, text)
    if unboxed == "marked" and "\\boxed" not in text:
        marked = last_mark(text, cut=answer.finish == "length")
        if marked and (inside := marked.inside.strip(" \t*_`:").removesuffix(".").strip("*_` ")):
            return inside
    raise NoAnswer(Why.NO_ANSWER)


def reference_in(text: str) -> str:
    """The formula: in the last box, behind ####, or all of it; raises ValueError if it is none."""
    try:
        found = boxes(text)
        inside = _last(found, text) if found else text.rpartition("####")[2]
    except NoAnswer as nothing:
        raise ValueError(f"the reference is no formula: {nothing.why}") from nothing
    if not inside.strip(" \t\n$"):
        raise ValueError("the reference is no formula: it is empty")
    return inside


def _last(found: list[Place], text: str) -> str:
    """The last box, with those that it is joined to; raises NoAnswer for a guess."""
    joined = [found[-1]]
    for box in reversed(found[-ELEMENTS:-1]):
        between = text[box.end : joined[0].start]
        if not LINKS.fullmatch(between):
            break
        joined.insert(0, box)
    insides = [*{box.inside.strip(): _without_boxes(box.inside) for box in joined}.values()]
    if len(found) > len(joined) and is_guess(found[-len(joined) - 1], joined[0], text):
        raise NoAnswer(Why.HEDGED)
    if not "".join(insides).strip():
        raise NoAnswer(Why.NO_ANSWER)
    return ", ".join(insides)


def _without_boxes(inside: str) -> str:
    """A box within a box is its contents in braces."""
    return re.sub(r"\\(?:boxed|fbox)(?=\s*\{)", "", inside)

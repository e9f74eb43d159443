r"""Where in a text its answer stands: in the last \boxed or \fbox behind the reasoning.

Boxes that are joined by "and" or commas are one list; joined by "or" and other words they are a
guess among several, and no answer.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from services.scoring.scorers.math.limits import ELEMENTS
from services.scoring.scorers.math.policies import UnboxedPolicy


class Why(StrEnum):
    """The reason of a verdict."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_final_answer"
    UNFINISHED = "unfinished_reasoning"
    HEDGED = "several_answers"
    NOT_UNDERSTOOD = "not_understood"
    TOO_LARGE = "too_large"
    NO_VALUE = "no_value"


class NoAnswer(Exception):
    """And why there is none."""

    def __init__(self, why: Why) -> None:
        self.why = why
        super().__init__(str(why))


class Box(NamedTuple):
    """What stands in it, and from where to where it reaches in the text."""

    inside: str
    start: int
    end: int


REASONING = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>|<\|(begin|end)_of_thought\|>")
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_MARKED = re.compile(
    r"<answer>(?P<tagged>.{0,5000}?)</answer>"
    r"|^\#\#\#\#[ \t]*(?P<hashed>\S+)"
    r"|(?:\bfinal answer(?:\*\*)?(?: is)?|\bthe answer is|^\W{0,4}answer)[ \t]*:?(?P<line>[^\n]*)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_LINKS = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;! ]|\\q?quad|\band\b|\bor\b|\\text\{\s*(?:and|or)\s*\})*"
)
_GUESSING = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b", re.IGNORECASE)
GUESS_CHARACTERS = 80
"""What stands between two boxes that are a guess is no longer than that."""


def answer_in(text: str, *, prompt: str, unboxed: UnboxedPolicy) -> str:
    """The formula; raises NoAnswer."""
    text = _behind_reasoning(text, prompt)
    boxes = _boxes(text)
    if boxes:
        return _last(boxes, text)
    if unboxed == "marked" and "\\boxed" not in text and (found := _marked(text)):
        return found
    raise NoAnswer(Why.NO_ANSWER)


def _behind_reasoning(text: str, prompt: str) -> str:
    """What follows its end; raises NoAnswer where it began, maybe in the prompt, and goes on."""
    is_open, start = prompt.rstrip().endswith(("<think>", "<thinking>", "<reasoning>")), 0
    for mark in REASONING.finditer(text):
        is_open = mark[2] == "begin" if mark[2] else not mark[1]
        start = mark.end()
    if is_open:
        raise NoAnswer(Why.UNFINISHED)
    return text[start:]


def _boxes(text: str) -> list[Box]:
    """Those that stand in no other; raises NoAnswer for one that stays open, in one pass."""
    first = min(
        (place for place in map(text.find, ("\\boxed", "\\fbox")) if place >= 0), default=-1
    )
    if first < 0:
        return []
    found: list[Box] = []
    open_: list[tuple[int, int]] = []
    inside: list[int] = []
    for brace in _BRACE.finditer(text, first):
        sign = brace.group()
        if sign == "}":
            start, end = open_.pop() if open_ else (-1, -1)
            if start >= 0:
                inside.pop()
                if not inside:
                    found.append(Box(text[end : brace.start()], start, brace.end()))
        elif sign == "{":
            open_.append((-1, brace.end()))
        elif len(sign) > 2:
            open_.append((brace.start(), brace.end()))
            inside.append(brace.start())
    if inside:
        raise NoAnswer(Why.NO_ANSWER)
    return found


def _last(boxes: list[Box], text: str) -> str:
    """The last box, with those that it is joined to; raises NoAnswer for a guess."""
    joined = [boxes[-1]]
    for box in reversed(boxes[-ELEMENTS:-1]):
        between = text[box.end : joined[0].start]
        if not _LINKS.fullmatch(between):
            break
        joined.insert(0, box)
    insides = [*{box.inside.strip(): without_boxes(box.inside) for box in joined}.values()]
    if len(boxes) > len(joined) and _is_guess(boxes[-len(joined) - 1], joined[0], text):
        raise NoAnswer(Why.HEDGED)
    if not "".join(insides).strip():
        raise NoAnswer(Why.NO_ANSWER)
    return ", ".join(insides)


def _is_guess(box: Box, then: Box, text: str) -> bool:
    between = text[box.end : then.start]
    differ = box.inside.strip() != then.inside.strip()
    return differ and len(between) <= GUESS_CHARACTERS and bool(_GUESSING.search(between))


def without_boxes(inside: str) -> str:
    """A box within a box is its contents in braces."""
    return re.sub(r"\\(?:boxed|fbox)(?=\s*\{)", "", inside)


def _marked(text: str) -> str:
    """What stands behind the last mark."""
    found = ""
    for match in _MARKED.finditer(text):
        found = next(group for group in match.groups() if group is not None)
    return found.strip(" \t*_`:").removesuffix(".").strip("*_` ")

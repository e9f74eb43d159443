r"""Where in a text an answer can stand: behind the reasoning, and there in boxes.

What is read out of them, and which of them counts, is each scorer's own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.scoring.scorers.reasons import NoAnswer, Why


class Place(NamedTuple):
    """What stands in it, and from where to where it reaches in the text."""

    inside: str
    start: int
    end: int


REASONING = re.compile(
    r"<(/?)(?:think|thinking|thought|reasoning)>|<\|(begin|end)_of_thought\|>", re.IGNORECASE
)
OPENING = ("<think>", "<thinking>", "<thought>", "<reasoning>", "<|begin_of_thought|>")
LINKS = re.compile(
    r"(?:[\s$,;&*]|\\[()\[\],;! ]|\\q?quad|\band\b|\bor\b|\\text\{\s*(?:and|or)\s*\})*"
)
"""What joins two answers to a list."""
GUESSING = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b", re.IGNORECASE)
"""What stands between two answers of which neither counts."""
_OPENED = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*[\w.+{}-]+[ \t]*\n?\Z", re.MULTILINE)
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
FENCE_CHARACTERS = 80
GUESS_CHARACTERS = 80
"""What stands between two answers that are a guess is no longer than that."""


def reasoning_end(text: str, prompt: str) -> int:
    """Where in the text the reasoning is over, 0 where there is none.

    Raises NoAnswer where it began, maybe in the prompt, and goes on.
    """
    is_open, end = prompt.rstrip().lower().endswith(OPENING), 0
    for mark in REASONING.finditer(text):
        is_open = mark[2].lower() == "begin" if mark[2] else not mark[1]
        end = mark.end()
    if is_open:
        raise NoAnswer(Why.NO_ANSWER)
    return end


def behind_reasoning(text: str, prompt: str) -> str:
    """What follows its end; raises NoAnswer where it goes on."""
    return text[reasoning_end(text, prompt) :]


def with_opened_fence(text: str, prompt: str) -> str:
    """The text behind the fence that the prompt ends with, if it does, and the text repeats none.

    One that names a language, for one that names nothing may be the end of another.
    """
    opened = _OPENED.search(prompt, max(0, len(prompt) - FENCE_CHARACTERS))
    if not opened or text.lstrip().startswith(opened[1]):
        return text
    return f"{opened.group().strip()}\n{text.removeprefix(chr(10))}"


def boxes(text: str) -> list[Place]:
    """Those that stand in no other; raises NoAnswer for one that stays open, in one pass."""
    first = min(
        (place for place in map(text.find, ("\\boxed", "\\fbox")) if place >= 0), default=-1
    )
    if first < 0:
        return []
    found: list[Place] = []
    open_: list[tuple[int, int]] = []
    inside: list[int] = []
    for brace in _BRACE.finditer(text, first):
        sign = brace.group()
        if sign == "}":
            start, end = open_.pop() if open_ else (-1, -1)
            if start >= 0:
                inside.pop()
                if not inside:
                    found.append(Place(text[end : brace.start()], start, brace.end()))
        elif sign == "{":
            open_.append((-1, brace.end()))
        elif len(sign) > 2:
            open_.append((brace.start(), brace.end()))
            inside.append(brace.start())
    if inside:
        raise NoAnswer(Why.NO_ANSWER)
    return found


def is_guess(place: Place, then: Place, text: str) -> bool:
    """Whether two answers differ and what stands between them leaves open which one counts."""
    between = text[place.end : then.start]
    differ = place.inside.strip() != then.inside.strip()
    return differ and len(between) <= GUESS_CHARACTERS and bool(GUESSING.search(between))

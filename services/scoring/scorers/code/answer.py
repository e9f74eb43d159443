"""Which program a text answers with: the last fenced block behind the reasoning."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import NamedTuple

from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.text.places import behind_reasoning, with_opened_fence

TAGS = ("python", "python3", "py")
# Possessive, so that no line takes longer than it is long.
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`\n]*+$", re.MULTILINE)


class Block(NamedTuple):
    """The word behind the opening fence, and the lines up to the closing one."""

    tag: str
    text: str


def program_in(text: str, *, prompt: str) -> str:
    """Of the last block that says it is Python; where none does, of the last that says nothing.

    Raises NoAnswer where there is none, or one that was cut off.
    """
    blocks = _blocks(behind_reasoning(with_opened_fence(text, prompt), prompt))
    for tags in (TAGS, ("",)):
        for block in reversed(blocks):
            if block.tag.strip("{.}").lower() in tags and block.text.strip():
                return block.text
    raise NoAnswer(Why.NO_ANSWER)


def _blocks(text: str) -> list[Block]:
    """A fence is closed by one of its own signs, at least as many, and nothing behind them."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif _closes(fence, opened):
            lines = text[opened.end() + 1 : fence.start()]
            found.append(Block(opened[2], dedent(lines) if opened[0][0].isspace() else lines))
            opened = None
    if opened:
        raise NoAnswer(Why.NO_ANSWER)
    return found


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    return fence[1].startswith(opened[1]) and fence.group().strip() == fence[1]

r"""The answer that a text marks as its own, for scorers that want one and no list.

Marks are \boxed{…}, <answer>…</answer>, "Answer: …", "The answer is …" and, where there is none of
these, "#### …". A text without any is an answer as a whole, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol, TypeVar

from pipeline.protocols import Answer
from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.text.places import (
    GUESS_CHARACTERS,
    GUESSING,
    LINKS,
    Place,
    behind_reasoning,
    boxes,
)
from services.scoring.scorers.text.strings import last

T_co = TypeVar("T_co", covariant=True)

LONGEST = 10_000
"""Characters of an answer: a longer one is not read."""
LONGEST_LINE = 100
"""Behind hashes, where an answer stands alone by custom: in a longer one it stands in front."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HEAD = re.compile(
    r"""(?:\bthe[ ]+)? \b(?:
          answer (?:[ ]to[ ](?:this|the)[ ](?:question|problem))? [*_ \t]*
            (?: \b(?:is|would[ ]be|must[ ]be|should[ ]be)\b [*_ \t]*[:=]? | [:=\uff1a] )
        | (?:correct|right|best|final)[ ](?:option|choice) [*_ \t]*
            (?: \bis\b [*_ \t]*:? | [:=\uff1a] )
        | final[ ]answer\W*$
      )
      | ^\W{0,6}answer\W{0,4}$""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
_HASHES = re.compile(r"^[ \t]*\#\#\#\#[ \t]*(?=[^\s#])", re.MULTILINE)
_SUPPOSED = re.compile(
    r"\b(?:not|never|if|whether|unless|suppos\w+|assum\w+|wrong|incorrect|false|doubt\w*|unlikely"
    r"|might|may|maybe|perhaps|possibly|why|another|other|first|initial|previous)\b"
    r"|n['\u2019]t\b",
    re.IGNORECASE,
)
"""In front of a mark, in its clause: what follows is nobody's answer."""
_CLAUSE = re.compile(r"[.!?:;,\n]")
_ON = re.compile(r"[\s$*_)\]}]*,?\s*(?:or|maybe|perhaps|possibly)\b", re.IGNORECASE)
"""Behind a box: the answer goes on."""


class Read(Protocol[T_co]):
    """Makes something of an answer's text, or raises NoAnswer.

    `alone`: the text is nothing but the answer; else a sentence may go on behind it.
    """

    def __call__(self, text: str, *, alone: bool) -> T_co: ...


def read_answer(answer: Answer, extract: re.Pattern[str] | None, read: Read[T_co]) -> T_co:
    """What `read` makes of the answer; raises NoAnswer, as it may.

    Only what follows the reasoning counts. `extract` finds it by its last match (its first group,
    if it has one), and an empty one takes all of the text; None: the last mark, or all of the text.
    """
    text = behind_reasoning(answer.text, answer.prompt)
    if extract is not None and extract.pattern:
        return read(_bounded(last(extract, text, min(extract.groups, 1)) or ""), alone=False)
    if extract is None:
        if answer.prompt.rstrip().lower().endswith("<answer>"):
            text = f"<answer>{text}"
        if place := last_mark(text, cut=answer.finish == "length"):
            return read(_bounded(place.inside), alone=False)
    try:
        return read(_bounded(text), alone=True)
    except NoAnswer as nothing:
        why = Why.NO_ANSWER if nothing.why is Why.NOT_UNDERSTOOD else nothing.why
        raise NoAnswer(why) from nothing


def last_mark(text: str, *, cut: bool) -> Place | None:
    """The last one, None where nothing is marked; raises NoAnswer for a guess among several.

    `cut` tells that the text would have gone on: its last line is then no answer.
    """
    closed = sorted([*boxes(text), *_tagged(text)], key=lambda place: place.start)
    heads = _heads(_HEAD, text, closed)
    places = sorted([*closed, *heads], key=lambda place: place.start)
    if not places:
        return _hashed(text, cut=cut)
    for place, then in pairwise(places[-2:]):
        _check_one(place, then, text, linked=place in closed and then in closed)
    if places[-1] in heads:
        return _line(text, places[-1], cut=cut)
    if _ON.match(text[places[-1].end :][:GUESS_CHARACTERS]):
        raise NoAnswer(Why.HEDGED)
    return places[-1]


def _hashed(text: str, *, cut: bool) -> Place | None:
    """The line behind the last hashes, or the first word of one that is long."""
    heads = _heads(_HASHES, text, [])
    if not heads:
        return None
    line = _line(text, heads[-1], cut=cut)
    short = len(line.inside) <= LONGEST_LINE
    return line if short else line._replace(inside=line.inside.split(maxsplit=1)[0])


def _tagged(text: str) -> Iterator[Place]:
    """What stands between tags; raises NoAnswer where the last was not closed."""
    start = inside = -1
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start, inside = tag.span()
        elif start >= 0:
            yield Place(text[inside : tag.start()], start, tag.end())
            start = -1
    if start >= 0:
        raise NoAnswer(Why.NO_ANSWER)


def _heads(pattern: re.Pattern[str], text: str, closed: list[Place]) -> list[Place]:
    """Marks of lines, outside of `closed` and in no clause that supposes; still without insides."""
    found, spans = [], iter(closed)
    span = next(spans, None)
    for head in pattern.finditer(text):
        while span and span.end <= head.start():
            span = next(spans, None)
        clause = _CLAUSE.split(text[max(0, head.start() - GUESS_CHARACTERS) : head.start()])[-1]
        if not (span and span.start <= head.start()) and not _SUPPOSED.search(clause):
            found.append(Place("", head.start(), head.end()))
    return found


def _line(text: str, head: Place, *, cut: bool) -> Place:
    """What follows a mark in its line, or in the next that is not empty; raises NoAnswer."""
    start = head.end + len(text[head.end :]) - len(text[head.end :].lstrip("*_: \t\r\n"))
    end = text.find("\n", start)
    if end < 0 and cut:
        raise NoAnswer(Why.NO_ANSWER)
    inside = text[start : end if end >= 0 else len(text)]
    if not inside.strip():
        raise NoAnswer(Why.NO_ANSWER)
    return Place(inside, head.start, start + len(inside))


def _check_one(place: Place, then: Place, text: str, *, linked: bool) -> None:
    """Raises NoAnswer where two marks differ that are joined, or of which one is a guess."""
    between = text[place.end : then.start]
    within = place.end > then.start
    alike = linked and place.inside.strip() == then.inside.strip()
    if within or alike or len(between) > GUESS_CHARACTERS:
        return
    sentence = re.split(r"[.!?]\s", between)[-1]
    if GUESSING.search(sentence) or (linked and LINKS.fullmatch(between)):
        raise NoAnswer(Why.HEDGED)


def _bounded(text: str) -> str:
    if len(text) > LONGEST or not text.strip():
        raise NoAnswer(Why.NO_ANSWER)
    return text

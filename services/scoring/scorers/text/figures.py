r"""A number as people write it, read whole and exactly or not at all.

Decimals, thousands ("1,234"), fractions and mixed numbers ("1 1/2", \frac{1}{2}), powers of ten
("1.5e3", "1.5 x 10^3"), percent. No arithmetic, no hexadecimal, no infinity, no other digits than
0 to 9; nothing is guessed about commas that part no thousands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.text.characters import folded
from services.scoring.scorers.text.places import GUESSING

LONGEST = 1_000
"""Characters of a number with all that stands around it."""
LARGEST_EXPONENT = 10_000
"""Of ten; a larger one would take long to work with, and more than all memory in the end."""

_MINUS = dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2013\ufe63"), "-")
_SPACES = "[\u202f\u2009]|\\\\,"
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle)\b|\\!|\\\(|\\\)|\\\[|\\\]"), ""),
    (re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" \1/\2 "),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r" \1/\2 "),
    (re.compile(r"\\(?:times|cdot)\b|[\u00d7\u00b7\u22c5]"), "*"),
    (re.compile(r"\\approx\b|\\simeq\b"), "≈"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(rf"(?<=\d)(?:{_SPACES})(?=\d{{3}})", re.ASCII), ","),
    (re.compile(_SPACES), " "),
    (re.compile(r"\^\s*\{?\\circ\}?|\\degree\b"), "°"),
    (re.compile(r"\\([%$])"), r"\1"),
)
_DOLLARS = re.compile(r"(?<!\\)\$((?:[^$\\]|\\.)*)\$")
_ENDS = " \t\r\n*_`\"'\u201c\u201d\u2018\u2019"
_NUMBER = r"""
    (?P<sign>[+-]?)\s*{before}
    (?: (?: (?P<whole>\d+)\s+ )? (?P<over>\d+)\s*/\s*(?P<under>\d+)
      | (?P<figures> [1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d*)? | \d+(?:\.\d*)? | \.\d+ )
        (?: [eE](?P<e>[+-]?\d+)
          | \s*[*x]\s* 10\s*(?:\^|\*\*)\s* [({{]?\s* (?P<power>[+-]?\d+) \s*[)}}]? )?
      | 10\s*\^\s*[({{]?\s* (?P<alone>[+-]?\d+) \s*[)}}]? )
    (?![\d.,^/!]*[\d^/!])
"""
_WHOLE = r"""
    (?: [A-Za-z]\w{{0,20}}\s*[=≈] | [=≈~] | (?:about|approximately|roughly|exactly)\b )? \s*
    {before} {number} \s* (?P<percent>%|(?i:per\s?cent|pct)\b)? {behind}
    (?P<tail>.*)
"""
_END = re.compile(r"(?:\.{3}|\u2026)?[.,;:!]?")
_TAIL = re.compile(rf"{_END.pattern}|{_END.pattern}\s.*", re.DOTALL)


class Figure(NamedTuple):
    """Its value as written: of 50% it is 50."""

    value: Fraction
    percent: bool


class Figures:
    """Reads numbers, beside which some words can stand."""

    def __init__(self, units: Sequence[str] = ()) -> None:
        words = "|".join(re.escape(unit) for unit in sorted(units, key=len, reverse=True) if unit)
        before = rf"(?:(?:{words})\s*)?" if words else ""
        behind = rf"(?:\s*(?:{words}))?" if words else ""
        number = _NUMBER.format(before=before)
        whole = _WHOLE.format(before=before, number=number, behind=behind)
        self._pattern = re.compile(whole, re.VERBOSE | re.ASCII | re.DOTALL)

    def read(self, text: str, *, alone: bool) -> Figure:
        """The one number that a text is, `alone` or in front of a sentence; raises NoAnswer."""
        text = _plain(text)
        found = self._pattern.match(text) if len(text) <= LONGEST else None
        if not found:
            several = len(re.findall(r"\d+", text[:LONGEST])) > 1 and GUESSING.search(text)
            raise NoAnswer(Why.HEDGED if several else Why.NOT_UNDERSTOOD)
        _check_tail(found["tail"], _END if alone else _TAIL)
        return Figure(_value(found), percent=bool(found["percent"]))


def _plain(text: str) -> str:
    """Without what only sets a number in type."""
    text = _DOLLARS.sub(r" \1 ", folded(text).translate(_MINUS))
    for pattern, instead in _LATEX * 2:  # a text within a box
        text = pattern.sub(instead, text)
    return text.strip(_ENDS)


def _check_tail(tail: str, known: re.Pattern[str]) -> None:
    """Raises NoAnswer for another number, or for what is not known to end one."""
    tail = tail.strip(_ENDS)
    if re.search(r"\d", tail) or GUESSING.search(tail):
        raise NoAnswer(Why.HEDGED)
    if not known.fullmatch(tail):
        raise NoAnswer(Why.NOT_UNDERSTOOD)


def _value(found: re.Match[str]) -> Fraction:
    """Raises NoAnswer for one that is too large to work with, or has none."""
    sign = -1 if found["sign"] == "-" else 1
    if found["over"]:
        if not int(found["under"]):
            raise NoAnswer(Why.NO_VALUE)
        return sign * (int(found["whole"] or 0) + Fraction(int(found["over"]), int(found["under"])))
    figures, exponent = found["figures"] or "1", found["e"] or found["power"] or found["alone"]
    power = int(exponent or 0)
    if abs(power) > LARGEST_EXPONENT:
        raise NoAnswer(Why.TOO_LARGE)
    return sign * Fraction(Decimal(figures.replace(",", ""))) * Fraction(10) ** power

"""JSON as RFC 8259 has it, and no more: one value of bounded size, each key once.

Python's own reader also takes NaN, keeps the last of two keys, and makes infinity of 1e400.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from services.scoring.scorers.reasons import NoAnswer, Why
from services.scoring.scorers.strict_json import each_once, no_constant

CHARACTERS = 1_000_000
DEPTH = 100
"""Lists and objects within each other."""
DIGITS = 300
"""Of a whole number: one that is a float as well."""

_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def parsed(text: str) -> Any:
    """The value; raises NoAnswer for what is none, or is larger than is read."""
    text = text.strip(" \t\r\n")
    if not text:
        raise NoAnswer(Why.NO_ANSWER)
    if len(text) > CHARACTERS or _depth(text) > DEPTH:
        raise NoAnswer(Why.TOO_LARGE)
    try:
        return json.loads(
            text,
            object_pairs_hook=each_once,
            parse_constant=no_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
    except ValueError as exc:
        raise NoAnswer(Why.NOT_UNDERSTOOD) from exc


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, and not true; the order of keys is none."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _depth(text: str) -> int:
    """Of the brackets outside of strings."""
    depth = deepest = 0
    for sign in _SIGNS.finditer(text):
        depth += (sign.group() in "[{") - (sign.group() in "]}")
        deepest = max(deepest, depth)
    return deepest


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise NoAnswer(Why.TOO_LARGE)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NoAnswer(Why.TOO_LARGE)
    return number

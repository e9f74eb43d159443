"""One formula, read: and what has two readings by itself, and one beside another formula.

A letter behind a number is a variable unless the other is a quantity, letters in a row are a
product unless the other is a word, 153,370 is a number unless the other is a list.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import Expression, Listing, Quantity, Text, Value
from services.scoring.scorers.math.limits import NotUnderstood, TooLarge, Undefined
from services.scoring.scorers.math.numerals import number
from services.scoring.scorers.math.quantities import unit_of
from services.scoring.scorers.math.reading import read
from services.scoring.scorers.math.split import Tokens, trimmed
from services.scoring.scorers.math.tokens import Token, tokens
from services.scoring.scorers.math.trees import minus, uses
from services.scoring.scorers.math.units import NONE
from services.scoring.scorers.reasons import Why

LISTED = re.compile(r"\s*\d+(?:,[1-9]\d{2})+\s*", re.ASCII)
"""One number, or several without spaces: as the other side has it."""

POWERED = re.compile(r"\s*-?\d+e-\d+\s*", re.ASCII)
"""A power of ten, or so many times e less something."""

PLAIN = re.compile(r"\s*(-?)(\d{1,200}(?:\.\d{1,200})?)\s*", re.ASCII)


class Formula(NamedTuple):
    """What was read: its tokens, and its value or why it has none."""

    written: str
    tokens: tuple[Token, ...]
    value: Value | None
    flaw: Why | None = None


def formula_of(written: str) -> Formula:
    """What is written, read; never raises."""
    if plain := PLAIN.fullmatch(written):
        value = number(plain[2])
        signed = minus(value) if plain[1] else value
        return Formula(written, (Token("plain", plain[1] + plain[2]),), Expression(signed))
    try:
        found = tuple(trimmed(tokens(written)))
    except NotUnderstood:
        return Formula(written, (Token("long", written),), None, Why.NOT_UNDERSTOOD)
    try:
        return Formula(written, found, read(found))
    except NotUnderstood:
        return Formula(written, found, None, Why.NOT_UNDERSTOOD)
    except (TooLarge, Undefined) as exc:
        why = Why.TOO_LARGE if isinstance(exc, TooLarge) else Why.NO_VALUE
        return Formula(written, found, None, why)


def beside(one: Formula, other: Formula) -> Value:
    """The value of the one as the other has it; both have one."""
    assert one.value is not None and other.value is not None, "both were read"
    if isinstance(other.value, Listing) and LISTED.fullmatch(one.written):
        return formula_of(one.written.replace(",", ", ")).value or one.value
    if POWERED.fullmatch(one.written) and not _has_e(other.value):
        return formula_of(one.written.replace("e", "E")).value or one.value
    return _like(other.value, one.value, one.tokens)


def _has_e(value: Value) -> bool:
    return isinstance(value, Expression) and uses(value.tree, "e")


def _like(other: Value, value: Value, tokens: Tokens) -> Value:
    """The value, or what its tokens are as one of the other's kind."""
    match value, other:
        case Expression(), Quantity():
            return _with_letter(tokens) or value
        case Expression(), Text() if all(t.kind in ("name", "const", "word") for t in tokens):
            return Text(("".join(token.text for token in tokens).lower(),))
    return value


def _with_letter(tokens: Tokens) -> Quantity | None:
    """A number and the letter of a unit; None where it cannot be one."""
    place = next((n for n, token in enumerate(tokens) if token.kind == "name"), 0)
    if not place or any(token.kind not in ("num", "op") for token in tokens[:place]):
        return None
    try:
        worded = [t._replace(kind="word") if t.kind == "name" else t for t in tokens[place:]]
        return Quantity(expression(tokens[:place]), unit_of(worded, NONE))
    except NotUnderstood:
        return None

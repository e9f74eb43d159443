"""What has two readings by itself, and one beside the other formula: 45 m, odd.

A letter behind a number is a variable unless the other one is a quantity, and letters in a row are
a product unless the other one is a word.
"""

from __future__ import annotations

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import Expression, Quantity, Text, Value
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.quantities import unit_of
from services.scoring.scorers.math.split import Tokens
from services.scoring.scorers.math.units import NONE


def read_like(other: Value, value: Value, tokens: Tokens) -> Value:
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

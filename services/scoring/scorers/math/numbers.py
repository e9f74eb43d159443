"""Whether two numbers, or expressions with variables, are the same: exactly, or as a policy says.

A decimal with many figures stands for what it is the rounded or the cut value of; with few figures
it is exactly what it says, and two decimals are never one by rounding.
"""

from __future__ import annotations

from fractions import Fraction

from services.scoring.scorers.math.equality import above, equal
from services.scoring.scorers.math.policies import Policies
from services.scoring.scorers.math.trees import Num, Tree, decimal, names


def same_number(one: Tree, other: Tree, policies: Policies) -> bool:
    """Raises TooLarge or Undefined where one of them has no value."""
    bases = [tree.base if isinstance(tree, Num) else 10 for tree in (one, other)]
    if policies.bases != "value" and bases[0] != bases[1]:
        return policies.bases == "dropped" and _digits(one) == _digits(other)
    return equal(one, other) or _is_rounded(one, other, policies.rounding)


def _digits(tree: Tree) -> str | None:
    """A whole number as it is written, without its base."""
    if not isinstance(tree, Num) or tree.value.denominator != 1 or tree.value < 0:
        return None
    value, digits = tree.value.numerator, ""
    while value or not digits:
        value, digit = divmod(value, tree.base)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits


def _is_rounded(one: Tree, other: Tree, figures: int) -> bool:
    """Whether one is a decimal of so many figures, the other none, and it comes out so."""
    decimals = [decimal(tree) for tree in (one, other)]
    if (decimals[0] is None) == (decimals[1] is None) or names(one) | names(other):
        return False
    written = decimals[0] or decimals[1]
    assert written, "one of the two is"
    if written.figures < figures:
        return False
    value, step = abs(written.value), Fraction(1, 10) ** written.places
    number = other if decimals[0] else one
    sign = 1 if written.value >= 0 else -1
    return above(number, (value - step / 2, value + step), sign)

"""A number and what it counts: percent, money, units of measure, degrees."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import Expression, Percent, Quantity, Value
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import Apply, Num
from services.scoring.scorers.math.units import NO_UNITS, NONE, POWERS, SCALES, Unit, unit

DEGREE, PERCENT, OVER, TIMES = (Token("op", text) for text in "°%/*")
PERCENTS = ("percent", "pct")
LONGEST = 12
"""Tokens of a unit."""


def quantity(tokens: Sequence[Token]) -> Value:
    """A number with or without a unit, whole; raises NotUnderstood."""
    money = [place for place, token in enumerate(tokens[:2]) if token.kind == "money"]
    coin = NONE
    if money and (money[0] == 0 or tokens[0].text == "-"):
        coin = unit(tokens[money[0]].text)
        tokens = (*tokens[: money[0]], *tokens[money[0] + 1 :])
    split = _unit_place(tokens)
    tree, rest = expression(tokens[:split]), [*tokens[split:]]
    while rest and rest[0].text in SCALES:
        tree = Apply("*", (tree, Num(Fraction(SCALES[rest.pop(0).text]))))
    if not rest and coin == NONE:
        return Expression(tree)
    if rest == [PERCENT] or (len(rest) == 1 and rest[0].text.lower() in PERCENTS):
        return Percent(tree)
    if coin != NONE and rest and not (rest[0] == OVER or rest[0].text == "per"):
        raise NotUnderstood("two units of one number")
    return Quantity(tree, unit_of(rest, coin))


def _unit_place(tokens: Sequence[Token]) -> int:
    """Where a unit begins, if one does: outside of brackets, behind something."""
    depth = 0
    turned = any(token.kind == "fn" and token.text[:3] in ("sin", "cos", "tan") for token in tokens)
    for place, token in enumerate(tokens):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        begins = token.kind in ("word", "money") or token == PERCENT
        if place and not depth and (begins or (token == DEGREE and not turned)):
            return place
    return len(tokens)


def unit_of(tokens: Sequence[Token], found: Unit) -> Unit:
    """Words, to powers, times or over each other; raises NotUnderstood."""
    if len(tokens) > LONGEST or any(token.text.lower() in NO_UNITS for token in tokens):
        raise NotUnderstood("what stands behind the number is no unit")
    rest, sign = [*tokens], 1
    while rest:
        if rest[0] in (OVER, TIMES) or rest[0].text == "per":
            sign = -1 if rest.pop(0) != TIMES else 1
        elif found != NONE and sign == 1 and rest[0].kind != "word":
            raise NotUnderstood(f"{rest[0].text} in a unit")
        found = found.times(_factor(rest).to(sign))
    return found


def _factor(rest: list[Token]) -> Unit:
    """One word with its power, taken from the front."""
    power = 1
    while rest and rest[0].text in POWERS:
        power = POWERS[rest.pop(0).text]
    if not rest or not (rest[0].kind in ("word", "money") or rest[0] == DEGREE):
        raise NotUnderstood("a unit that is no word")
    name = rest.pop(0)
    if name == DEGREE and rest and rest[0].text in "CF":
        return unit(f"degree {rest.pop(0).text}")
    if rest and rest[0].text == "^":
        power *= _exponent(rest)
    return unit(name.text).to(power)


def _exponent(rest: list[Token]) -> int:
    rest.pop(0)
    group = rest[:3] if rest and rest[0].text == "{" else rest[:1]
    del rest[: len(group)]
    digits = "".join(token.text for token in group).strip("{}")
    if digits not in ("1", "2", "3", "4"):
        raise NotUnderstood("a unit to such a power")
    return int(digits)

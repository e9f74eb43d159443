"""A number and what it counts: percent, money, units of measure, degrees."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import Expression, Percent, Quantity, Value
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.split import matching
from services.scoring.scorers.math.tokens import FRACTION, Token
from services.scoring.scorers.math.trees import Apply, Num
from services.scoring.scorers.math.units import (
    NO_UNITS,
    NONE,
    POWERS,
    SCALES,
    Unit,
    is_unit,
    unit,
)

DEGREE, PERCENT, OVER, TIMES = (Token("op", text) for text in "°%/*")
PERCENTS = ("percent", "pct")
COINS = ("USD", "EUR", "GBP", "INR", "Rs")
LONGEST = 12
"""Tokens of a unit."""


def quantity(tokens: Sequence[Token]) -> Value:
    """A number with or without a unit, or a sum of them, whole; raises NotUnderstood."""
    cuts = [place for place in range(1, len(tokens)) if _follows(tokens[place - 1 : place + 1])]
    if not cuts or len(cuts) >= LONGEST:
        return _single(tokens)
    pairs = zip([0, *cuts], [*cuts, len(tokens)], strict=True)
    total = total_of([_single(tokens[start:end]) for start, end in pairs])
    if total is None:
        raise NotUnderstood("numbers and words that are no sum")
    return total


def _follows(pair: Sequence[Token]) -> bool:
    """Whether a number stands behind a unit: 1 hour 30 minutes."""
    return pair[0].kind == "word" and pair[1].kind == "num" and not _is_money(pair[0])


def total_of(values: Sequence[Value]) -> Quantity | None:
    """The sum, where their units measure the same and each is smaller than the one before."""
    found = [value for value in values if isinstance(value, Quantity)]
    units = [value.unit for value in found]
    factors = [unit.factor for unit in units]
    is_falling = factors == sorted({*factors}, reverse=True)
    if len(found) < len(values) or not is_falling or len({unit.bases for unit in units}) > 1:
        return None
    terms = [Apply("*", (value.tree, Num(value.unit.factor))) for value in found]
    return Quantity(Apply("+", (*terms,)), Unit(Fraction(1), units[0].bases))


def _single(tokens: Sequence[Token]) -> Value:
    money = [place for place, token in enumerate(tokens[:2]) if _is_money(token)]
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


def _is_money(token: Token) -> bool:
    return token.kind == "money" or (token.kind == "word" and token.text in COINS)


def _unit_place(tokens: Sequence[Token]) -> int:
    """Where a unit begins, if one does: outside of brackets, behind something."""
    depth = 0
    turned = any(token.kind == "fn" and token.text[:3] in ("sin", "cos", "tan") for token in tokens)
    for place, token in enumerate(tokens):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        begins = token.kind in ("word", "money") or token == PERCENT
        begins = begins or (token == FRACTION and _is_of_units(tokens[place:]))
        if place and not depth and (begins or (token == DEGREE and not turned)):
            return place
    return len(tokens)


def unit_of(tokens: Sequence[Token], found: Unit) -> Unit:
    """Words, to powers, times or over each other; raises NotUnderstood."""
    if len(tokens) > LONGEST or any(token.text.lower() in NO_UNITS for token in tokens):
        raise NotUnderstood("what stands behind the number is no unit")
    if found == NONE and tokens[:1] == [FRACTION]:
        tokens = _beside(tokens)
    rest, sign = [*tokens], 1
    while rest:
        if rest[0] in (OVER, TIMES) or rest[0].text == "per":
            sign = -1 if rest.pop(0) != TIMES else 1
        elif found != NONE and sign == 1 and rest[0].kind != "word":
            raise NotUnderstood(f"{rest[0].text} in a unit")
        found = found.times(_factor(rest).to(sign))
    return found


def _is_of_units(tokens: Sequence[Token]) -> bool:
    return len(tokens) > 2 and tokens[1].text == "{" and tokens[2].kind == "word"


def _beside(tokens: Sequence[Token]) -> Sequence[Token]:
    """One over the other as one / the other; raises NotUnderstood for what has more in it."""
    middle = matching(tokens[1:]) + 2
    end = matching(tokens[middle:]) + middle + 1
    if not 0 < middle < end == len(tokens):
        raise NotUnderstood("a fraction with something behind it, in a unit")
    return [*tokens[2 : middle - 1], OVER, *tokens[middle + 1 : -1]]


def _factor(rest: list[Token]) -> Unit:
    """One word with its power, taken from the front."""
    power = 1
    while rest and rest[0].text in POWERS:
        power = POWERS[rest.pop(0).text]
    if not rest or not (rest[0].kind in ("word", "money") or rest[0] == DEGREE):
        raise NotUnderstood("a unit that is no word")
    name = rest.pop(0)
    if len(name.text) == 1 and not is_unit(name.text) and name != DEGREE:
        raise NotUnderstood("one letter, which may be a variable")
    if name == DEGREE and rest and rest[0].text in "CF":
        return unit(f"degree {rest.pop(0).text}")
    if rest and rest[0].text == "^":
        power *= _exponent(rest)
    return unit(name.text).to(power)


def _exponent(rest: list[Token]) -> int:
    rest.pop(0)
    end = matching(rest) + 1 if rest and rest[0].text == "{" else 1
    digits = "".join(token.text for token in rest[:end]).strip("{}")
    del rest[:end]
    if digits.removeprefix("-") not in ("1", "2", "3", "4"):
        raise NotUnderstood("a unit to such a power")
    return int(digits)

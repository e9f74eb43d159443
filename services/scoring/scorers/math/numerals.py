"""Numbers as they are written: digits, decimals, repeating ones, mixed ones, and other bases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from services.scoring.scorers.math.limits import DIGITS, NotUnderstood, TooLarge
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import Apply, Num, Tree

BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
    "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16",
}  # fmt: skip


def number(text: str, base: int = 10) -> Num:
    """A number as it is written; raises NotUnderstood for a digit that the base does not have."""
    if len(text) > DIGITS:
        raise TooLarge(f"a number of {len(text)} characters")
    if "\\" in text or "(" in text:
        return _repeating(text)
    mantissa, _, exponent = text.upper().partition("E") if base == 10 else (text, "", "")
    whole, _, rest = mantissa.partition(".")
    try:
        value = Fraction(int(whole + rest or "0", base), base ** len(rest))
    except ValueError as exc:
        raise NotUnderstood(f"{text} is no number of base {base}") from exc
    if len(exponent) > 5:
        raise TooLarge(f"an exponent of {exponent}")
    power = int(exponent or "0")
    figures = len((whole + rest.rstrip("0")).lstrip("0")) if rest.strip("0") else 0
    return Num(value * Fraction(10) ** power, len(rest) - power if rest else 0, figures, base)


def _repeating(text: str) -> Num:
    """0.1\\overline{6}, 0.\\dot1\\dot6, 0.(16): from the first sign on, all digits come again."""
    fixed = re.split(r"[\\(]", text, maxsplit=1)[0]
    repeated = re.sub(r"\D", "", text[len(fixed) :])
    whole, _, rest = fixed.partition(".")
    nines = (10 ** len(repeated) - 1) * 10 ** len(rest)
    return Num(Fraction(int(whole + rest or "0"), 10 ** len(rest)) + Fraction(int(repeated), nines))


def is_whole(tree: Tree) -> bool:
    """Whether it is a whole number as it is written."""
    return isinstance(tree, Num) and not tree.figures and tree.value.denominator == 1


def is_fraction(tree: Tree) -> bool:
    """Whether it is one whole number over another, as they are written."""
    match tree:
        case Apply("*", (top, Apply("inv", (bottom,)))):
            return is_whole(top) and is_whole(bottom)
    return False


def mixed(factors: Sequence[Tree]) -> Num:
    """1\\frac{1}{2} is 3/2; raises NotUnderstood where it may be a product."""
    match factors:
        case [Num(whole), Apply("*", (Num(top), Apply("inv", (Num(bottom),))))] if 0 < top < bottom:
            return Num(whole + top / bottom)
    raise NotUnderstood("a number and a fraction, and whether they are a sum")


def base_of(group: Sequence[Token]) -> int:
    """What a subscript says; raises NotUnderstood."""
    text = "".join(token.text for token in group)
    text = BASES.get(text.lower(), text)
    if not text.isdecimal() or not 2 <= int(text[:3]) <= 36:
        raise NotUnderstood(f"the subscript {text} of a number")
    return int(text)

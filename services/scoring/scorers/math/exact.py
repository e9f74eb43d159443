"""What a tree is worth as an exact fraction, where it has one.

Every operation is checked against `limits` before it is done.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from services.scoring.scorers.math.limits import BITS, LARGEST_FACTORIAL, Purse, TooLarge, Undefined
from services.scoring.scorers.math.trees import Num, Sym, Tree

At = Mapping[str, Fraction]
"""What the variables are."""


class Inexact(Exception):
    """It is no fraction, or none that was found."""


def exact(tree: Tree, at: At, purse: Purse) -> Fraction:
    """Raises Inexact, TooLarge or Undefined."""
    if isinstance(tree, Num):
        return tree.value
    if isinstance(tree, Sym):
        return at[tree.name]
    if tree.op not in _EXACT:
        raise Inexact(tree.op)
    return _EXACT[tree.op](purse, *(exact(argument, at, purse) for argument in tree.args))


def _paid(value: Fraction, purse: Purse) -> Fraction:
    purse.spend(value.numerator.bit_length() + value.denominator.bit_length())
    return value


def _whole(value: Fraction) -> int:
    if value.denominator != 1:
        raise Inexact("it is no whole number")
    return value.numerator


def _sum(purse: Purse, *terms: Fraction) -> Fraction:
    return functools.reduce(lambda one, other: _paid(one + other, purse), terms)


def _product(purse: Purse, *factors: Fraction) -> Fraction:
    return functools.reduce(lambda one, other: _paid(one * other, purse), factors)


def _inverse(purse: Purse, value: Fraction) -> Fraction:
    if not value:
        raise Undefined("a division by zero")
    return 1 / value


def _power(purse: Purse, base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if base < 0:
            raise Inexact("a root of what is negative")
        base = _root(purse, Fraction(exponent.denominator), base)
    if base == 0 and exponent <= 0:
        raise Undefined("a power of zero")
    power = exponent.numerator
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and abs(power) * bits > BITS + bits:
        raise TooLarge("a power")
    return _paid(base ** (power if abs(base) != 1 else power % 2), purse)


def _root(purse: Purse, degree: Fraction, value: Fraction) -> Fraction:
    order = _whole(degree)
    if not 0 < order <= 64 or (value < 0 and order % 2 == 0):
        raise Inexact("a root")
    parts = [_whole_root(abs(value.numerator), order), _whole_root(value.denominator, order)]
    return Fraction(*parts) * (-1 if value < 0 else 1)


def _whole_root(value: int, order: int) -> int:
    """By Newton's method; raises Inexact where there is none."""
    if order == 2 or value < 2:
        root = math.isqrt(value)
    else:
        root = 1 << -(-value.bit_length() // order)
        while (better := ((order - 1) * root + value // root ** (order - 1)) // order) < root:
            root = better
    if root**order != value:
        raise Inexact("a root that is no fraction")
    return root


def _factorial(purse: Purse, value: Fraction) -> Fraction:
    if _whole(value) < 0:
        raise Undefined("a factorial of what is negative")
    if value > LARGEST_FACTORIAL:
        raise TooLarge("a factorial")
    return _paid(Fraction(math.factorial(int(value))), purse)


def _binomial(purse: Purse, above: Fraction, below: Fraction) -> Fraction:
    if _whole(above) < 0 or _whole(below) < 0:
        raise Inexact("a binomial of what is negative")
    if above > LARGEST_FACTORIAL:
        raise TooLarge("a binomial")
    return _paid(Fraction(math.comb(int(above), int(below))), purse)


_EXACT: dict[str, Callable[..., Fraction]] = {
    "+": _sum,
    "*": _product,
    "neg": lambda _, value: -value,
    "inv": _inverse,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "abs": lambda _, value: abs(value),
    "floor": lambda _, value: Fraction(math.floor(value)),
    "ceil": lambda _, value: Fraction(math.ceil(value)),
    "gcd": lambda _, *values: Fraction(math.gcd(*map(_whole, values))),
    "lcm": lambda purse, *values: _paid(Fraction(math.lcm(*map(_whole, values))), purse),
    "min": lambda _, *values: min(values),
    "max": lambda _, *values: max(values),
}

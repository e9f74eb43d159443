"""What a tree is worth to so many digits, where it is no fraction.

Every operation is checked against `limits` before it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from services.scoring.scorers.math.exact import At
from services.scoring.scorers.math.limits import (
    MAGNITUDE,
    Purse,
    TooLarge,
    Undefined,
)
from services.scoring.scorers.math.trees import Num, Sym, Tree

SATURATED = 150
"""Beyond it, tanh differs from 1 behind all the digits that are looked at."""

Real = Any
"""A number of mpmath, which has no types: real or complex."""

NUMBERS = mpmath.MPContext()


def approximate(tree: Tree, at: At, purse: Purse) -> Real:
    """To as many digits as `NUMBERS.dps` says; raises TooLarge or Undefined."""
    if isinstance(tree, Num):
        return _sized(number(tree.value), purse)
    if isinstance(tree, Sym):
        return number(at[tree.name])
    arguments = [approximate(argument, at, purse) for argument in tree.args]
    try:
        return _sized(_APPROXIMATE[tree.op](purse, *arguments), purse)
    except (ZeroDivisionError, ValueError, OverflowError, TypeError, KeyError) as exc:
        raise Undefined(f"{tree.op}: {exc}") from exc


def number(value: Fraction) -> Real:
    """A fraction among them."""
    return NUMBERS.mpf(value.numerator) / value.denominator


def _sized(value: Real, purse: Purse) -> Real:
    if not NUMBERS.isfinite(value):
        raise Undefined("it is not finite")
    if value:
        purse.see(int(NUMBERS.mag(value)))
    return value


def _product(purse: Purse, *factors: Real) -> Real:
    return functools.reduce(lambda one, other: _sized(one * other, purse), factors)


def _small(value: Real, bound: int = MAGNITUDE) -> Real:
    """An argument whose result would not be in range beyond the bound."""
    if abs(value) > bound:
        raise TooLarge("an argument out of range")
    return value


def _power_of(_: Purse, base: Real, exponent: Real) -> Real:
    if not base:
        if NUMBERS.re(exponent) <= 0:
            raise Undefined("a power of zero")
        return NUMBERS.zero
    _small(abs(exponent) * max(1, abs(NUMBERS.mag(base))))
    return NUMBERS.power(base, exponent)


def _root_of(purse: Purse, degree: Real, value: Real) -> Real:
    """Odd ones of negative numbers are real."""
    is_odd = NUMBERS.isint(degree) and int(_small(degree)) % 2 == 1
    if is_odd and not NUMBERS.im(value) and value < 0:
        return -_power_of(purse, -value, 1 / degree)
    return _power_of(purse, value, 1 / degree)


def _gamma(purse: Purse, value: Real) -> Real:
    purse.spend_gamma(NUMBERS.dps)
    return NUMBERS.factorial(_small(value))


def _binomial_of(purse: Purse, above: Real, below: Real) -> Real:
    purse.spend_gamma(NUMBERS.dps)
    return NUMBERS.binomial(*(_small(value) for value in (above, below)))


def _rounded(name: str, value: Real) -> Real:
    """Next to a whole number it would be a guess."""
    if abs(value - NUMBERS.nint(value)) < NUMBERS.mpf(10) ** -20:
        raise Undefined("a number next to a whole one is rounded")
    return getattr(NUMBERS, name)(value)


def _function(name: str) -> Callable[..., Real]:
    return lambda _, *values: getattr(NUMBERS, name)(*values)


def _of_small(name: str, bound: int = MAGNITUDE) -> Callable[..., Real]:
    return lambda _, value: getattr(NUMBERS, name)(_small(value, bound))


_APPROXIMATE: dict[str, Callable[..., Real]] = {
    "pi": lambda _: +NUMBERS.pi,
    "e": lambda _: +NUMBERS.e,
    "i": lambda _: NUMBERS.mpc(0, 1),
    "+": lambda _, *values: functools.reduce(lambda one, other: one + other, values),
    "*": _product,
    "neg": lambda _, value: -value,
    "inv": lambda _, value: 1 / value,
    "^": _power_of,
    "root": _root_of,
    "!": _gamma,
    "binom": _binomial_of,
    "abs": lambda _, value: abs(value),
    "floor": lambda _, value: _rounded("floor", value),
    "ceil": lambda _, value: _rounded("ceil", value),
    "min": lambda _, *values: min(values),
    "max": lambda _, *values: max(values),
    "deg": lambda _, value: value * NUMBERS.pi / 180,
    "log": lambda _, base, value: NUMBERS.ln(value) / NUMBERS.ln(base),
    "log of no base": lambda _, value: NUMBERS.ln(value) / (NUMBERS.sqrt(7) + NUMBERS.sqrt(3) / 5),
    "arcsin": _function("asin"),
    "arccos": _function("acos"),
    "arctan": _function("atan"),
}
"""`log` without a base is in one that nobody knows: log 8 = 3 log 2, and it equals no number."""

_APPROXIMATE |= {name: _function(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "ln")}
_APPROXIMATE |= {name: _of_small(name) for name in ("exp", "sinh", "cosh")}
_APPROXIMATE |= {name: _of_small(name, SATURATED) for name in ("tanh", "coth")}

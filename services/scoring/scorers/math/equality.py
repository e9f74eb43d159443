"""Whether two trees are worth the same, stand in one proportion, or lie above each other.

Exact values are compared where there are any; else two numbers are the same if 200 digits agree.
With variables, the same must hold for several choices of them; a choice at which a side is not real
does not count, so that variables under a root are positive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

from services.scoring.scorers.math.approximate import NUMBERS, Real, approximate, number
from services.scoring.scorers.math.exact import At, Inexact, exact
from services.scoring.scorers.math.limits import MAGNITUDE, Purse, TooLarge, Undefined
from services.scoring.scorers.math.trees import Num, Tree, names, uses

DIGITS_FIRST, DIGITS_THEN, SPARE = 50, 200, 25
"""Most differences show in the first; `SPARE` of the last digits may be lost on the way."""

NARROW = 6
"""Powers of ten: what has larger and smaller numbers in it may lose more on the way."""

POSITIVE = 2
NEGATIVE: tuple[Callable[[int], bool], ...] = (
    lambda _: True,
    lambda number: number % 2 == 0,
    lambda number: number % 2 == 1,
)
"""First choices of positive variables; then which of them, by number, are negative."""


class Incomparable(Exception):
    """Of these two none is above the other, or it cannot be told."""


class Both(NamedTuple):
    """Two values, the powers of ten on the way to them, and whether they are as good as one."""

    left: Real
    right: Real
    spread: int
    close: bool

    @property
    def is_real(self) -> bool:
        """Both are."""
        return not (NUMBERS.im(self.left) or NUMBERS.im(self.right))


def equal(one: Tree, other: Tree) -> bool:
    """Raises TooLarge or Undefined where one of them has no value."""
    if one == other:
        return True
    variables = sorted(names(one) | names(other))
    if not variables:
        return _same_at(one, other, {}, real_only=False)
    is_complex = uses(one, "i") or uses(other, "i")
    return all(
        _same_at(one, other, at, real_only=number >= POSITIVE and not is_complex)
        for number, at in enumerate(_choices(variables))
    )


def order(one: Tree, other: Tree) -> int:
    """-1, 0 or 1; raises Incomparable for what has variables, is not real, or has no value."""
    if names(one) | names(other):
        raise Incomparable("it has variables")
    try:
        if _same_at(one, other, {}, real_only=False):
            return 0
        found = _both(one, other, {}, DIGITS_THEN)
    except (Undefined, TooLarge) as exc:
        raise Incomparable(str(exc)) from exc
    if not found.is_real or found.left == found.right:
        raise Incomparable("it is not real, or too close to tell")
    return -1 if found.left < found.right else 1


def proportional(one: Tree, other: Tree, *, positive: bool = False) -> bool:
    """Whether one is the other times a constant that is not 0; `positive`: that is above 0."""
    ratios = [*_ratios(one, other, sorted(names(one) | names(other)))]
    if len(ratios) < POSITIVE:
        return False
    if positive and (NUMBERS.im(ratios[0]) or ratios[0] <= 0):
        return False
    first = ratios[0]
    if all(isinstance(ratio, Fraction) for ratio in ratios):
        return all(ratio == first for ratio in ratios)
    with NUMBERS.workdps(DIGITS_THEN):
        first, *rest = [number(r) if isinstance(r, Fraction) else r for r in ratios]
        smallest = NUMBERS.mpf(10) ** (-DIGITS_THEN // 2)
        return all(abs(ratio / first - 1) < smallest for ratio in rest)


def above(tree: Tree, bounds: tuple[Fraction, Fraction], sign: int) -> bool:
    """Whether the number, times the sign, is at least the first and below the second."""
    low, high = (Num(sign * bound) for bound in bounds)
    try:
        return sign * order(tree, low) >= 0 and sign * order(tree, high) < 0
    except Incomparable:
        return False


def _same_at(one: Tree, other: Tree, at: At, *, real_only: bool) -> bool:
    try:
        return exact(one, at, Purse()) == exact(other, at, Purse())
    except Inexact:
        return _agree(one, other, at, real_only=real_only)
    except Undefined:
        if real_only:
            return True
        raise


def _agree(one: Tree, other: Tree, at: At, *, real_only: bool = False) -> bool:
    try:
        found = _both(one, other, at, DIGITS_FIRST)
        if real_only and not found.is_real:
            return True
        if found.spread <= NARROW and not found.close:
            return False
        return _both(one, other, at, max(DIGITS_THEN, 60 + 4 * found.spread)).close
    except Undefined:
        if real_only:
            return True
        raise


def _both(one: Tree, other: Tree, at: At, digits: int) -> Both:
    """Raises TooLarge where they go on between numbers that are too far apart."""
    purses = Purse(), Purse()
    with NUMBERS.workdps(digits):
        left, right = approximate(one, at, purses[0]), approximate(other, at, purses[1])
        bits = max(purse.spread for purse in purses)
        if digits == DIGITS_FIRST and bits > MAGNITUDE:
            raise TooLarge("numbers too far apart")
        spread = bits * 3 // 10
        smallest = NUMBERS.mpf(10) ** -(digits - 2 * min(spread, digits // 4) - SPARE)
        largest = max(abs(left), abs(right))
        close = largest < smallest or abs(left - right) <= smallest * largest
        return Both(left, right, spread, bool(close))


def _ratios(one: Tree, other: Tree, variables: Sequence[str]) -> Iterator[Fraction | Real]:
    for at in _choices(variables):
        with suppress(Undefined):
            try:
                values = exact(one, at, Purse()), exact(other, at, Purse())
            except Inexact:
                values = _both(one, other, at, DIGITS_THEN)[:2]
            with NUMBERS.workdps(DIGITS_THEN):
                if all(values):
                    yield values[0] / values[1]


def _choices(variables: Sequence[str]) -> Iterator[At]:
    """Between .3 and 2.7, so that e^(x^3) is in range; the same ones on every machine."""
    rng = random.Random(len(variables))
    signs: list[Callable[[int], bool]] = [lambda _: False] * POSITIVE
    for is_negative in (*signs, *NEGATIVE):
        yield {
            name: Fraction(rng.randint(3 * 10**8, 27 * 10**8), 10**9 + 7)
            * (-1 if is_negative(number) else 1)
            for number, name in enumerate(variables)
        }

"""Whether two trees are worth the same, stand in one proportion, or lie above each other.

Exact values are compared where there are any; else two numbers are the same if 200 digits agree.
With variables, the same must hold for several choices of them; a choice at which a side is not real
does not count, so that variables under a root are positive.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

from services.scoring.scorers.math.approximate import NUMBERS, Real, approximate, number
from services.scoring.scorers.math.choices import LEAST, seen
from services.scoring.scorers.math.exact import At, Inexact, exact
from services.scoring.scorers.math.limits import MAGNITUDE, Purse, TooLarge, Undefined
from services.scoring.scorers.math.trees import Num, Tree, names, uses

DIGITS_FIRST, DIGITS_THEN, SPARE = 50, 200, 25
"""Most differences show in the first; `SPARE` of the last digits may be lost on the way."""

NARROW = 6
"""Powers of ten: what has larger and smaller numbers in it may lose more on the way."""


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
    if not names(one) | names(other):
        return _same_at(one, other, {}, real_only=False)
    is_complex = uses(one, "i") or uses(other, "i")

    def same(at: At, number: int) -> bool:
        return _same_at(one, other, at, real_only=number >= LEAST and not is_complex)

    return all(seen(one, other, same))


def order(one: Tree, other: Tree) -> int:
    """-1, 0 or 1; raises Incomparable for what has variables, is not real, or has no value."""
    if names(one) | names(other):
        raise Incomparable("it has variables")
    try:
        if _same_at(one, other, {}, real_only=False):
            return 0
        found = _both(one, other, {}, DIGITS_FIRST)
        if found.close or found.spread > NARROW:
            found = _both(one, other, {}, DIGITS_THEN)
    except (Undefined, TooLarge) as exc:
        raise Incomparable(str(exc)) from exc
    if not found.is_real or found.left == found.right:
        raise Incomparable("it is not real, or too close to tell")
    return -1 if NUMBERS.re(found.left) < NUMBERS.re(found.right) else 1


def proportional(one: Tree, other: Tree, *, positive: bool = False) -> bool:
    """Whether one is the other times a constant that is not 0; `positive`: that is above 0."""
    found = [*seen(one, other, partial(_ratio, one, other))]
    ratios = [ratio for ratio in found if ratio is not None]
    if len(ratios) < LEAST or not all(ratios):
        return False
    if positive and (NUMBERS.im(ratios[0]) or NUMBERS.re(ratios[0]) <= 0):
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
    with NUMBERS.workdps(digits):
        (left, first), (right, second) = (_worth(tree, at, digits) for tree in (one, other))
        bits = max(first, second)
        if digits == DIGITS_FIRST and bits > MAGNITUDE:
            raise TooLarge("numbers too far apart")
        spread = bits * 3 // 10
        smallest = NUMBERS.mpf(10) ** -(digits - 2 * min(spread, digits // 4) - SPARE)
        largest = max(abs(left), abs(right))
        close = largest < smallest or abs(left - right) <= smallest * largest
        return Both(left, right, spread, bool(close))


def _worth(tree: Tree, at: At, digits: int) -> tuple[Real, int]:
    """And the powers of two on the way. That of a number without variables is kept for a while."""
    if not at:
        return _constant(tree, digits)
    purse = Purse()
    return approximate(tree, at, purse), purse.spread


@lru_cache(maxsize=256)
def _constant(tree: Tree, digits: int) -> tuple[Real, int]:
    """Members of lists and sets are compared with each other, each many times."""
    purse = Purse()
    return approximate(tree, {}, purse), purse.spread


def _ratio(one: Tree, other: Tree, at: At, _: int) -> Fraction | Real | None:
    """None where both are 0, and 0 where one is."""
    try:
        values = exact(one, at, Purse()), exact(other, at, Purse())
    except Inexact:
        values = _both(one, other, at, DIGITS_THEN)[:2]
    with NUMBERS.workdps(DIGITS_THEN):
        return values[0] / values[1] if all(values) else Fraction(0) if any(values) else None

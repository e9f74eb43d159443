"""Values of the variables at which two trees are compared: the same ones on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

from services.scoring.scorers.math.exact import At
from services.scoring.scorers.math.limits import TooLarge, Undefined
from services.scoring.scorers.math.trees import Tree, alternates, names, uses, wholes

Seen = TypeVar("Seen")

LEAST = 2
"""Choices of the variables at which there must be something to compare."""

SIGNS: tuple[Callable[[int], bool], ...] = (
    lambda _: False,
    lambda _: False,
    lambda _: True,
    lambda number: number % 2 == 0,
    lambda number: number % 2 == 1,
)
"""Which of the variables, by number, are negative, choice by choice."""

FAR = 100, 1_000_000
"""Sizes of further choices: |x - 5| is 5 - x where x is small."""

WRITTEN = 6
"""Whole numbers of a formula that are choices as well: of gcd(n, 97) all others are 1."""

COUNTING = ("!", "binom", "gcd", "lcm")
ROUNDING = ("floor", "ceil")
COUNTED = frozenset("ijklmnpqMNK")
"""Letters that count. Where one is rounded, or the power of what is negative, it is a whole number,
as all are below a factorial."""


def seen(one: Tree, other: Tree, look: Callable[[At, int], Seen]) -> Iterator[Seen]:
    """What is seen at the choices, as far as they can be worked out; raises if that is not far."""
    number, flaw = 0, None
    for at in _chosen(one, other):
        try:
            found = look(at, number)
        except Undefined as exc:
            flaw = exc
            continue
        except TooLarge:
            if number < LEAST:
                raise
            return
        number += 1
        yield found
    if number < LEAST and flaw:
        raise flaw


def _chosen(one: Tree, other: Tree) -> Iterator[At]:
    variables = sorted(names(one) | names(other))
    rng = random.Random(len(variables))
    if _are_whole(one, other, variables):
        return _whole_choices(variables, rng, sorted({*wholes(one), *wholes(other)}))
    return _choices(variables, rng)


def _are_whole(one: Tree, other: Tree, variables: Sequence[str]) -> bool:
    if uses(one, *COUNTING) or uses(other, *COUNTING):
        return True
    is_rounded = any(uses(tree, *ROUNDING) or alternates(tree) for tree in (one, other))
    return is_rounded and all(name[0] in COUNTED for name in variables)


def _choices(variables: Sequence[str], rng: random.Random) -> Iterator[At]:
    """Between .3 and 2.7, so that e^(x^3) is in range, and then far from there."""
    for is_negative in SIGNS:
        yield {
            name: Fraction(rng.randint(3 * 10**8, 27 * 10**8), 10**9 + 7)
            * (-1 if is_negative(number) else 1)
            for number, name in enumerate(variables)
        }
    for size in FAR:
        for sign in (1, -1):
            yield {
                name: Fraction(sign * rng.randint(size, 9 * size), 7) * rng.choice((1, 1, 100))
                for name in variables
            }


def _whole_choices(
    variables: Sequence[str], rng: random.Random, written: Sequence[int]
) -> Iterator[At]:
    """From small ones on, in any order of size among themselves, then those that stand in them."""
    for most in (3, 4, 5, 6, 8, 10, 12, 20, 40, 80, 160):
        yield {name: Fraction(rng.randint(1, most)) for name in variables}
    for value in written[:WRITTEN]:
        yield dict.fromkeys(variables, Fraction(value))

"""The kinds of answers. Only like is compared with like; what reads them is in `reading`."""

from __future__ import annotations

from typing import NamedTuple

from services.scoring.scorers.math.trees import Tree
from services.scoring.scorers.math.units import Unit


class Expression(NamedTuple):
    """A number, or an expression with variables: 3/4, x^2 + 1."""

    tree: Tree


class Percent(NamedTuple):
    """So many hundredths: 50%."""

    tree: Tree


class Quantity(NamedTuple):
    """So many of a unit: 5 cm, $70, 90°."""

    tree: Tree
    unit: Unit


class Ratio(NamedTuple):
    """3:4, also a time of day, 12:00 or 2:30 pm."""

    parts: tuple[Tree, ...]
    word: str = ""


class Bracketed(NamedTuple):
    """Ordered, between brackets: a point (2, 3), a vector, or an interval [2, 5)."""

    opening: str
    closing: str
    items: tuple[Value, ...]


class Piece(NamedTuple):
    """The reals from `low` to `high`, with an end where it is `closed`."""

    low: Tree
    low_closed: bool
    high: Tree
    high_closed: bool


class Reals(NamedTuple):
    """A set of real numbers, its pieces apart and in order."""

    pieces: tuple[Piece, ...]


class Listing(NamedTuple):
    """Without brackets and so without an order, unless it has dots: 1, -2 or 3 and 4."""

    items: tuple[Value, ...]


class Dots(NamedTuple):
    """What a list leaves out."""


class Collection(NamedTuple):
    """A finite set: {1, 2}."""

    items: tuple[Value, ...]


class Matrix(NamedTuple):
    """Its rows, of one length; the shape of its brackets is no matter, but | | is no matrix."""

    rows: tuple[tuple[Tree, ...], ...]


class Choice(NamedTuple):
    """One of several that are offered, and what stands there: (C) 42."""

    letter: str
    value: Value


class Named(NamedTuple):
    """x = 5, f(x) = 2x, D = (0, 1), x in [0, 1): a value, and what is said to have it."""

    name: str
    value: Value


class Equation(NamedTuple):
    """The difference of its sides is 0."""

    difference: Tree


class Inequality(NamedTuple):
    """The difference is above 0, or with `or_equal` it is 0 or above."""

    difference: Tree
    or_equal: bool


class Text(NamedTuple):
    """Words, in small letters."""

    words: tuple[str, ...]


Value = (
    Expression
    | Percent
    | Quantity
    | Ratio
    | Bracketed
    | Reals
    | Listing
    | Dots
    | Collection
    | Matrix
    | Choice
    | Named
    | Equation
    | Inequality
    | Text
)

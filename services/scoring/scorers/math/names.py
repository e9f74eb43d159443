"""Values with names: which names are one, and what a name and its value are as an equation."""

from __future__ import annotations

from collections.abc import Sequence

from services.scoring.scorers.math.kinds import (
    Bracketed,
    Equation,
    Expression,
    Inequality,
    Listing,
    Named,
    Piece,
    Reals,
    Value,
)
from services.scoring.scorers.math.trees import OO, Apply, Sym, Tree, minus


def is_same_name(one: str, other: str) -> bool:
    """x_1, x_{1} and x are; x_1 and x_2 are not."""
    one, other = (name.replace("{", "").replace("}", "") for name in (one, other))
    heads = one.split("_")[0], other.split("_")[0]
    return one == other or (heads[0] == heads[1] and heads[0] in (one, other))


def apart(items: Sequence[Value]) -> bool:
    """Whether they are of several things, x = 1, y = 2, and not several values of one, x_1, x_2."""
    return len({item.name[:1] for item in items if isinstance(item, Named)}) > 1


def one_by_one(value: Value) -> Value:
    """(x, y) = (1, 2) as x = 1, y = 2."""
    match value:
        case Named(name, Bracketed("(", ")", items)) if name.startswith("("):
            names = name.strip("()").split(",")
            if len(names) == len(items):
                return Listing(tuple(Named(*pair) for pair in zip(names, items, strict=True)))
    return value


def as_relation(value: Value) -> Value:
    """x = 5 as x - 5 = 0, x > 3 as x - 3 > 0; all else as it is."""
    match value:
        case Named(name, Expression(tree)) if len(name) == 1:
            return Equation(_minus(Sym(name), tree))
        case Named(name, Reals((Piece(low, closed, high, _),))) if high == OO and low != minus(OO):
            return Inequality(_minus(Sym(name), low), closed)
        case Named(name, Reals((Piece(low, _, high, closed),))) if low == minus(OO) and high != OO:
            return Inequality(_minus(high, Sym(name)), closed)
    return value


def _minus(one: Tree, other: Tree) -> Tree:
    return Apply("+", (one, minus(other)))

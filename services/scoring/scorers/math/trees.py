"""A formula as a tree: numbers, names, and operations on trees. No arithmetic is done here."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple


class Num(NamedTuple):
    """A number as written: `figures` significant ones if it is no whole number, else 0.

    `places` is how many digits stand behind the point; `base` is 10 unless a subscript says so.
    """

    value: Fraction
    places: int = 0
    figures: int = 0
    base: int = 10


class Sym(NamedTuple):
    """A variable."""

    name: str


class Apply(NamedTuple):
    """An operation; without arguments a constant: pi, e, i or oo."""

    op: str
    args: tuple[Tree, ...] = ()


Tree = Num | Sym | Apply

ONE, TEN = Num(Fraction(1)), Num(Fraction(10))
OO = Apply("oo")


def minus(tree: Tree) -> Tree:
    """Its negative; that of a written number is a written number."""
    if isinstance(tree, Num) and tree.base == 10:
        return tree._replace(value=-tree.value)
    return Apply("neg", (tree,))


def names(tree: Tree) -> frozenset[str]:
    """Its variables."""
    return frozenset(node.name for node in _nodes(tree) if isinstance(node, Sym))


def uses(tree: Tree, *ops: str) -> bool:
    """Whether one of the operations or constants stands anywhere in it."""
    return any(isinstance(node, Apply) and node.op in ops for node in _nodes(tree))


def wholes(tree: Tree) -> Iterator[int]:
    """The whole numbers above 1 that stand in it."""
    for node in _nodes(tree):
        if isinstance(node, Num) and node.value.denominator == 1 and node.value > 1:
            yield node.value.numerator


def alternates(tree: Tree) -> bool:
    """Whether (-1)^n stands in it, or another power of a negative number to a variable."""
    return any(
        isinstance(node, Apply)
        and node.op == "^"
        and isinstance(node.args[0], Num)
        and node.args[0].value < 0
        and bool(names(node.args[1]))
        for node in _nodes(tree)
    )


def decimal(tree: Tree) -> Num | None:
    """The number, its figures and its places, where it is written as 3.14 or 3.14 * 10^5."""
    if isinstance(tree, Apply) and tree.op == "neg":
        inner = decimal(tree.args[0])
        return inner and inner._replace(value=-inner.value)
    if isinstance(tree, Num):
        return tree if tree.figures else None
    match tree:
        case Apply("*", (Num() as front, Apply("^", (ten, power)))) if front.figures:
            exponent = power.args[0] if isinstance(power, Apply) and power.args else power
            if ten == TEN and isinstance(exponent, Num) and exponent.value.denominator == 1:
                return _shifted(front, exponent.value if exponent is power else -exponent.value)
    return None


def _shifted(front: Num, exponent: Fraction) -> Num | None:
    if abs(exponent) > 1000:
        return None
    return front._replace(
        value=front.value * Fraction(10) ** int(exponent), places=front.places - int(exponent)
    )


def _nodes(tree: Tree) -> Iterator[Tree]:
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, Apply):
            todo.extend(node.args)

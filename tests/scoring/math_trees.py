"""Expressions of one variable, what they are worth by mpmath alone, and their LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import mpmath

PLACES = (mpmath.mpf(17) / 13, mpmath.mpf("0.61"), mpmath.mpf("-1.37"), mpmath.mpf(137) / 7)
DIGITS, ALIKE, LARGEST = 60, mpmath.mpf(10) ** -45, mpmath.mpf(10) ** 40
SUM, PRODUCT, FACTOR, POWER, ATOM = range(5)
"""How tightly what is written holds together."""


class Node(NamedTuple):
    """An operation on others; a leaf has its text instead."""

    op: str
    args: tuple[Node, ...] = ()
    text: str = ""


class Written(NamedTuple):
    """LaTeX, and how tightly it holds together."""

    text: str
    binds: int


def tree(rng: Random, depth: int) -> Node:
    """Any expression."""
    if depth == 0 or rng.random() < 0.15:
        digits = str(rng.choice([rng.randint(0, 9), rng.randint(1, 5), rng.randint(10, 30)]))
        decimal = f"{rng.randint(0, 9)}.{rng.randint(0, 99):02}"
        return Node("leaf", text=rng.choice([digits, digits, decimal, r"\pi", "x", "x"]))
    op = rng.choice([*OPS])
    if op == "^":
        return Node("^", (tree(rng, depth - 1), rng.choice(EXPONENTS)))
    return Node(op, tuple(tree(rng, depth - 1) for _ in range(2 if op in "+-*/" else 1)))


def changed(node: Node, rng: Random) -> Node:
    """The same with its arguments turned, or with one leaf that is another."""
    if node.op == "leaf":
        return tree(rng, 0)
    if node.op in "+*" and rng.random() < 0.6:
        return node._replace(args=node.args[::-1])
    place = rng.randrange(1 if node.op == "^" else len(node.args))
    args = [changed(arg, rng) if n == place else arg for n, arg in enumerate(node.args)]
    return node._replace(args=tuple(args))


def worth(node: Node, x: Any) -> Any:
    """Raises ValueError where it has no value, is not real, or is out of range."""
    if node.op == "leaf":
        return {"x": x, r"\pi": +mpmath.pi}.get(node.text) or mpmath.mpf(node.text)
    try:
        value = OPS[node.op](*(worth(arg, x) for arg in node.args))
    except (ZeroDivisionError, TypeError) as exc:
        raise ValueError(node.op) from exc
    if not mpmath.isfinite(value) or mpmath.im(value) or abs(value) > LARGEST:
        raise ValueError(f"{node.op}: {value}")
    return value


def written(node: Node, rng: Random, least: int = SUM) -> str:
    """In one of several ways; in brackets where it would not hold together by itself."""
    text, binds = _written(node, rng)
    if binds >= least:
        return text
    return rng.choice(["({})", r"\left({}\right)", "{{({})}}"]).format(text)


def _written(node: Node, rng: Random) -> Written:
    space = rng.choice(["", "", " ", r"\,"])
    first, *rest = node.args or (node,)
    match node.op:
        case "leaf":
            return Written(node.text + (" " if node.text == r"\pi" else ""), ATOM)
        case "+" | "-":
            sides = written(first, rng), written(rest[0], rng, PRODUCT)
            return Written(f"{sides[0]}{space}{node.op}{space}{sides[1]}", SUM)
        case "neg":
            return Written(f"-{space}{written(first, rng, PRODUCT)}", SUM)
        case "*":
            return _product(first, rest[0], rng)
        case "/":
            over = f"{{{written(first, rng)}}}{{{written(rest[0], rng)}}}"
            plain = f"{written(first, rng, FACTOR)}/{written(rest[0], rng, ATOM)}"
            return rng.choice([Written(r"\frac" + over, FACTOR), Written(plain, SUM)])
        case "^":
            return Written(f"{written(first, rng, ATOM)}^{{{written(rest[0], rng)}}}", POWER)
        case "abs":
            bars = rng.choice(["|{}|", r"\left|{}\right|", r"\lvert {}\rvert "])
            return Written(bars.format(written(first, rng)), SUM)
    call = {"root": r"\sqrt{{{}}}", "cube root": r"\sqrt[3]{{{}}}", "sin": r"\sin({})"}[node.op]
    return Written(call.format(written(first, rng)), PRODUCT if node.op == "sin" else ATOM)


def _product(first: Node, then: Node, rng: Random) -> Written:
    left, right = written(first, rng, FACTOR), written(then, rng, FACTOR)
    signs = [r"\cdot ", r"\times ", "*"]
    is_clear = right[0].isalpha() or right.startswith(("(", r"\left(", r"\sqrt", r"\pi"))
    return Written(left + rng.choice([*signs, *(["", " "] if is_clear else [])]) + right, PRODUCT)


def _cube_root(value: Any) -> Any:
    return mpmath.sign(value) * mpmath.cbrt(abs(value))


OPS: dict[str, Callable[..., Any]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
    "^": lambda base, power: mpmath.power(base, power) if base else 1 / base,
    "neg": lambda value: -value,
    "root": mpmath.sqrt,
    "cube root": _cube_root,
    "sin": mpmath.sin,
    "abs": abs,
}
_HALF = Node("/", (Node("leaf", text="1"), Node("leaf", text="2")))
EXPONENTS = (*(Node("leaf", text=text) for text in "23x"), _HALF, Node("neg", (_HALF.args[0],)))

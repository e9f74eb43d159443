"""Equations, inequalities and names: what has a relation in it, outside of all brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.scoring.scorers.math.equality import equal
from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import (
    Collection,
    Equation,
    Expression,
    Inequality,
    Listing,
    Named,
    Piece,
    Reals,
    Value,
)
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.reals import ALL, as_reals, united, without
from services.scoring.scorers.math.split import COMMA, Tokens, matching, split
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import OO, Apply, Sym, Tree, minus, names

LONGEST_CHAIN = 8
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
CALLED = frozenset("fghpquvwyABCEFGHLMNPQRSTVX")
READ_AS_NAMES = ("angle", "triangle", "measuredangle", "overline", "widehat", "overrightarrow")

DRAWN = (*READ_AS_NAMES, "{", "}", "|")

Read = Callable[[Tokens], Value]


class Side(NamedTuple):
    """One side of a relation, and the relation that stands before it ("" for the first)."""

    sign: str
    tokens: Tokens


def sides(tokens: Tokens) -> list[Side]:
    """One alone where there is no relation."""
    parts, signs = split(tokens, lambda token: token.kind == "rel")
    return [Side("", parts[0])] + [
        Side(sign.text, part) for sign, part in zip(signs, parts[1:], strict=True)
    ]


def related(found: Sequence[Side], read: Read) -> Value:
    """The value of two sides and more; `read` reads one. Raises NotUnderstood."""
    exact = [side for side in found if side.sign != "≈"]
    if not exact[0].tokens:  # ≈ 3.14 and = 3.14 alone, and what begins with another sign is nothing
        exact = exact[1:] or [*found[1:]]
        if exact[0].sign not in ("", "=", "≈"):
            raise NotUnderstood("it begins with a relation")
    if len(exact) > LONGEST_CHAIN or not all(side.tokens for side in exact):
        raise NotUnderstood("a relation with one side")
    signs = {side.sign for side in exact[1:]}
    if not signs:
        return read(exact[0].tokens)
    if signs == {"="}:
        return _equated([side.tokens for side in exact], read)
    if len(exact) == 2 and signs <= {"∈", "!="}:
        return _contained(*exact, read=read)
    if signs <= TURNED.keys():
        return _ordered(exact)
    raise NotUnderstood("a chain of different relations")


def named(name: str, value: Value) -> Named:
    """Of x = (y = 5) nothing is made."""
    if isinstance(value, Named | Equation | Inequality):
        raise NotUnderstood("a relation within a relation")
    return Named(name, value)


def _equated(parts: Sequence[Tokens], read: Read) -> Value:
    name = _name(parts[0])
    if not name and len(parts) == 2 and _name(parts[1]):
        parts, name = parts[::-1], _name(parts[1])
    if len(parts) > 2 and all(called := [_name(part) for part in parts[:-1]]):
        return Listing(tuple(named(name, read(parts[-1])) for name in called))
    if name and not _uses(parts[1:], name):
        return named(name, _agreed(parts[1:], read))
    if len(parts) == 2 and (difference := _difference(*parts)) and names(difference):
        return Equation(difference)
    return _agreed(parts, read)


def _agreed(parts: Sequence[Tokens], read: Read) -> Value:
    """The last of numbers that are the same; what does not agree is no answer."""
    last = read(parts[-1])
    for part in parts[:-1]:
        value = read(part)
        if value != last and not (
            isinstance(value, Expression)
            and isinstance(last, Expression)
            and equal(value.tree, last.tree)
        ):
            raise NotUnderstood("an equation that does not hold")
    return last


def _difference(left: Tokens, right: Tokens) -> Tree:
    return Apply("+", (expression(left), minus(expression(right))))


def _name(tokens: Tokens) -> str:
    """What a value can be given to: x, x_1, f(x), (x, y), AB, an angle or words; "" for no name."""
    text = "".join(token.text for token in tokens)
    kinds = [token.kind for token in tokens]
    first = tokens[0] if tokens else Token("", "")
    if kinds and all(kind in ("word", "sep") for kind in kinds):
        return text.lower()
    if len(tokens) > 1 and _is_figure(tokens):
        return text
    if first.kind == "name" and (len(tokens) == 1 or _is_subscript(tokens[1:])):
        return text
    if first.kind == "name" and first.text in CALLED and _is_called(tokens[1:]):
        return text
    return text if first.text == "(" and _is_names(tokens) else ""


def _is_figure(tokens: Tokens) -> bool:
    """AB, |AB|, an angle or a triangle: capital letters with what is drawn around them."""
    letters = [token.text for token in tokens if token.kind == "name"]
    signs = [t for t in tokens if t.kind != "name" and t.text not in DRAWN]
    if letters[:1] == ["m"] and tokens[1].kind == "cmd":
        letters = letters[1:]
    bars = sum(token.text == "|" for token in tokens)
    return (
        not signs
        and bars in (0, 2)
        and bool(letters)
        and all(letter.isupper() for letter in letters)
    )


def _is_names(tokens: Tokens) -> bool:
    """(x, y): one letter in each place."""
    if matching(tokens) != len(tokens) - 1:
        return False
    parts, _ = split(tokens[1:-1], lambda token: token == COMMA)
    return len(parts) > 1 and all(len(part) == 1 and part[0].kind == "name" for part in parts)


def _is_called(tokens: Tokens) -> bool:
    """(x), (2), (x, y): what a function is called with, and no factor."""
    if not tokens or tokens[0].text != "(" or matching(tokens) != len(tokens) - 1:
        return False
    parts = split(tokens[1:-1], lambda token: token == COMMA)[0]
    return all(len(part) == 1 and part[0].kind in ("name", "num") for part in parts)


def _is_subscript(tokens: Tokens) -> bool:
    if len(tokens) < 2 or tokens[0].text != "_":
        return False
    return len(tokens) == 2 or (tokens[1].text == "{" and matching(tokens[1:]) == len(tokens) - 2)


def _uses(parts: Sequence[Tokens], name: str) -> bool:
    return any(token.text == name and token.kind == "name" for part in parts for token in part)


def _variable(tokens: Tokens) -> str:
    """A variable with or without a subscript, or ""."""
    name = _name(tokens)
    return name if name and tokens[0].kind == "name" and "(" not in name else ""


def _contained(left: Side, right: Side, *, read: Read) -> Value:
    name = _variable(left.tokens)
    if not name:
        raise NotUnderstood("what is in a set is no name")
    value = read(right.tokens)
    if right.sign == "!=":
        if not isinstance(value, Expression):
            raise NotUnderstood("what it is unequal to is no number")
        point = Piece(value.tree, True, value.tree, True)
        return Named(name, without(ALL, Reals((point,))))
    is_known = isinstance(value, Collection) or right.tokens[0].kind == "field"
    return Named(name, value if is_known else as_reals(value))


def _ordered(found: Sequence[Side]) -> Value:
    """x > 3, 0 < x <= 1, or an inequality that is more than that."""
    trees = [expression(side.tokens) for side in found]
    signs = [side.sign for side in found[1:]]
    if len(found) == 2:
        return _pair(trees[0], signs[0], trees[1])
    middle = trees[1]
    if len(found) != 3 or len({sign[0] for sign in signs}) > 1 or not isinstance(middle, Sym):
        raise NotUnderstood("a chain of inequalities")
    if signs[0][0] == ">":
        trees, signs = trees[::-1], signs[::-1]
    piece = Piece(trees[0], "=" in signs[0], trees[2], "=" in signs[1])
    return Named(middle.name, united([piece]))


def _pair(left: Tree, sign: str, right: Tree) -> Value:
    if isinstance(right, Sym) and not names(left):
        left, sign, right = right, TURNED[sign], left
    if isinstance(left, Sym) and not names(right):
        closed = "=" in sign
        low = Piece(minus(OO), False, right, closed)
        high = Piece(right, closed, OO, False)
        return Named(left.name, united([low if sign[0] == "<" else high]))
    above, below = (left, right) if sign[0] == ">" else (right, left)
    difference = Apply("+", (above, minus(below)))
    if not names(difference):
        raise NotUnderstood("an inequality of numbers")
    return Inequality(difference, "=" in sign)

"""Sets of real numbers: intervals, what they have in common, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cmp_to_key

from services.scoring.scorers.math.equality import Incomparable, order
from services.scoring.scorers.math.kinds import (
    Bracketed,
    Collection,
    Expression,
    Piece,
    Reals,
    Value,
)
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.trees import OO, Tree, minus

ALL = Reals((Piece(minus(OO), False, OO, False),))
INFINITE = (OO, minus(OO))


def as_reals(value: Value) -> Reals:
    """An interval between brackets, or a set of numbers, as such; raises NotUnderstood."""
    match value:
        case Reals():
            return value
        case Bracketed(opening, closing, (Expression(low), Expression(high))):
            if opening in "([" and closing in ")]":
                return united([Piece(low, opening == "[", high, closing == "]")])
        case Collection(items) if all(isinstance(item, Expression) for item in items):
            points = [item.tree for item in items if isinstance(item, Expression)]
            return united([Piece(point, True, point, True) for point in points])
    raise NotUnderstood("it is no set of numbers")


def is_punctured(reals: Reals) -> bool:
    """Whether it is everything but some points."""
    ends = [(piece.low, piece.low_closed, piece.high, piece.high_closed) for piece in reals.pieces]
    lows, highs = [end[:2] for end in ends], [end[2:] for end in ends]
    return (
        len(ends) > 1
        and highs[-1] == (OO, False)
        and lows[0][0] == minus(OO)
        and (lows[1:] == highs[:-1])
    )


def united(pieces: Iterable[Piece]) -> Reals:
    """Apart and in order; raises NotUnderstood for an interval without a number in it."""
    known = [*pieces]
    if len(known) == 1 and known[0].low not in INFINITE and known[0].high not in INFINITE:
        _check(known[0])
        return Reals(tuple(known))
    ordered = sorted(known, key=cmp_to_key(_by_low))
    found: list[Piece] = []
    for piece in ordered:
        _check(piece)
        if found and _touches(found[-1], piece):
            found[-1] = _joined(found[-1], piece)
        else:
            found.append(piece)
    return Reals(tuple(found))


def without(whole: Reals, holes: Reals) -> Reals:
    """What is in the one and not in the other."""
    pieces = [*whole.pieces]
    for hole in holes.pieces:
        left = Piece(minus(OO), False, hole.low, not hole.low_closed)
        right = Piece(hole.high, not hole.high_closed, OO, False)
        pieces = [*_common(pieces, [left, right])]
    return united(pieces)


def common(one: Reals, other: Reals) -> Reals:
    """What is in both."""
    return united(_common(one.pieces, other.pieces))


def _common(one: Iterable[Piece], other: Iterable[Piece]) -> Iterable[Piece]:
    others = [*other]
    for a in one:
        for b in others:
            piece = _overlap(a, b)
            ends = _compared(piece.low, piece.high)
            if ends < 0 or (ends == 0 and piece.low_closed and piece.high_closed):
                yield piece


def _overlap(a: Piece, b: Piece) -> Piece:
    lows, highs = _compared(a.low, b.low), _compared(a.high, b.high)
    low = a if lows > 0 or (lows == 0 and not a.low_closed) else b
    high = a if highs < 0 or (highs == 0 and not a.high_closed) else b
    return Piece(low.low, low.low_closed, high.high, high.high_closed)


def _by_low(one: Piece, other: Piece) -> int:
    return _compared(one.low, other.low)


def _check(piece: Piece) -> None:
    ends = _compared(piece.low, piece.high)
    if ends > 0 or (ends == 0 and not (piece.low_closed and piece.high_closed)):
        raise NotUnderstood("an interval without a number in it")


def _touches(first: Piece, then: Piece) -> bool:
    ends = _compared(first.high, then.low)
    return ends > 0 or (ends == 0 and (first.high_closed or then.low_closed))


def _joined(first: Piece, then: Piece) -> Piece:
    highs = _compared(first.high, then.high)
    last = then if highs < 0 or (highs == 0 and then.high_closed) else first
    closed = first.low_closed or (then.low_closed and _compared(first.low, then.low) == 0)
    return Piece(first.low, closed, last.high, last.high_closed)


def _compared(one: Tree, other: Tree) -> int:
    """-1, 0 or 1; raises NotUnderstood where that is not known."""
    if one == other:
        return 0
    ranks = [{minus(OO): -1, OO: 1}.get(tree, 0) for tree in (one, other)]
    if any(ranks):
        return ranks[0] - ranks[1]
    try:
        return order(one, other)
    except Incomparable as exc:
        raise NotUnderstood(f"an end of an interval: {exc}") from exc

"""What LaTeX writes in rows: matrices, and systems of equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import (
    Equation,
    Inequality,
    Listing,
    Matrix,
    Named,
    Value,
)
from services.scoring.scorers.math.limits import ELEMENTS, NotUnderstood
from services.scoring.scorers.math.split import Tokens, matching, split, trimmed
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import ONE, Apply, Tree, minus

CELL, TIMES, MINUS, BRACE = (Token("op", text) for text in "&*-⦃")
_MATRICES = "matrix pmatrix bmatrix Bmatrix smallmatrix psmallmatrix bsmallmatrix array"
MATRICES = frozenset(_MATRICES.split())
_SYSTEMS = "cases aligned align gathered gather split array"
SYSTEMS = frozenset(_SYSTEMS.split())

Read = Callable[[Tokens], Value]


def array(tokens: Tokens, read: Read) -> Value:
    """Between \\begin and \\end; `read` reads one row of a system."""
    name, inner = _name(tokens[0]), tokens[1:-1]
    if name in SYSTEMS and (name != "array" or any(token.kind == "rel" for token in inner)):
        return _system(inner, read)
    if name not in MATRICES:
        raise NotUnderstood(f"{name} is no matrix")
    cells = [split(row, lambda token: token == CELL)[0] for row in _rows(inner)]
    widths = {len(row) for row in cells}
    if len(widths) != 1 or len(cells) > ELEMENTS or widths.pop() > ELEMENTS:
        raise NotUnderstood("rows that differ in length")
    return Matrix(tuple(tuple(expression(cell) for cell in row) for row in cells))


def without_brace(tokens: Tokens) -> Tokens:
    """A system without the brace before it, which nothing closes."""
    is_open = len(tokens) > 2 and tokens[0] == BRACE and _name(tokens[1]) in SYSTEMS
    return tokens[1:] if is_open and matching(tokens[1:]) == len(tokens) - 2 else tokens


def multiple(tokens: Tokens, read: Read) -> Matrix | None:
    """A number times a matrix, or None."""
    place = next((n for n, token in enumerate(tokens) if token.kind == "env"), 0)
    if not place or matching(tokens[place:]) != len(tokens) - 1 - place:
        return None
    matrix, front = read(tokens[place:]), tokens[:place]
    if not isinstance(matrix, Matrix):
        return None
    factor = minus(ONE) if list(front) == [MINUS] else _factor(front)
    return Matrix(tuple(tuple(Apply("*", (factor, cell)) for cell in row) for row in matrix.rows))


def _factor(tokens: Tokens) -> Tree:
    tree = expression(tokens[:-1] if tokens[-1] == TIMES else tokens)
    if isinstance(tree, Apply) and tree.op == "+":
        raise NotUnderstood("a sum before a matrix")
    return tree


def _name(token: Token) -> str:
    return token.text.removeprefix("\\begin{") if token.kind == "env" else ""


def _rows(inner: Tokens) -> list[Tokens]:
    rows, _ = split(inner, lambda token: token.kind == "row")
    return rows if rows[-1] or len(rows) == 1 else rows[:-1]


def _system(inner: Tokens, read: Read) -> Value:
    """All its rows at once; one alone is what stands in it."""
    rows = [trimmed(_aligned(row)) for row in _rows(inner)]
    if len(rows) > ELEMENTS:
        raise NotUnderstood("so many rows")
    values = [read(row) for row in rows]
    if len(values) == 1:
        return values[0]
    if not all(isinstance(value, Named | Equation | Inequality) for value in values):
        raise NotUnderstood("rows that are no equations")
    return Listing(tuple(values))


def _aligned(row: Sequence[Token]) -> Tokens:
    """Without the signs that set = under =; another one parts a case from its condition."""
    beside = [n for n, token in enumerate(row) if token.kind == "rel"]
    near = {n + step for n in beside for step in (-1, 1)}
    return [token for n, token in enumerate(row) if token != CELL or not (n in near or n == 0)]

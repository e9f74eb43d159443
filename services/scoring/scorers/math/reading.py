"""From tokens to a value of one kind, or NotUnderstood: lists, brackets, sets, matrices, text.

What stands between signs is read by `expressions`, what stands behind a number by `quantities`, and
what has a relation in it by `relations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import (
    Bracketed,
    Collection,
    Dots,
    Listing,
    Matrix,
    Named,
    Ratio,
    Reals,
    Text,
    Value,
)
from services.scoring.scorers.math.limits import ELEMENTS, NotUnderstood
from services.scoring.scorers.math.quantities import quantity
from services.scoring.scorers.math.reals import ALL, as_reals, common, united, without
from services.scoring.scorers.math.relations import related, sides
from services.scoring.scorers.math.split import COMMA, SEMICOLON, Tokens, matching, split, trimmed
from services.scoring.scorers.math.tokens import Token

DOTS, COLON, BAR, NOTHING, MINUS = (Token("op", text) for text in "…:|∅-")
REAL = Token("field", "R")
SIGNS = {"±": ("+", "-"), "∓": ("-", "+")}
MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "smallmatrix")
OPENING, CLOSING = ("(", "[", "⟨", "⦃"), (")", "]", "⟩", "⦄")


def read(tokens: Tokens) -> Value:
    """Raises NotUnderstood, and TooLarge for a number of too many digits."""
    tokens = trimmed(tokens)
    if not tokens:
        raise NotUnderstood("it is empty")
    if all(token.kind == "word" for token in tokens) and len(tokens[0].text + tokens[-1].text) > 2:
        return Text(tuple(token.text.lower() for token in tokens))
    parts, joins = _listed(_straightened(tokens))
    if len(parts) == 1:
        return _one(parts[0])
    if len(parts) > ELEMENTS:
        raise NotUnderstood("a list of so many")
    return _listing([_one(part) for part in parts], joins)


def _listed(tokens: Tokens) -> tuple[list[Tokens], set[str]]:
    """The parts of a list, and what joins them: ", and" is one."""
    parts, signs = split(tokens, lambda t: t in (COMMA, SEMICOLON) or t.kind == "sep")
    kept = parts[:1]
    for part, sign, before in zip(parts[1:], signs, [COMMA, *signs], strict=False):
        if not kept[-1] and sign.kind == "sep" and len(kept) > 1 and before == COMMA:
            kept.pop()
        kept.append(part)
    if not all(kept):
        raise NotUnderstood("a list with nothing in one place")
    return kept, {sign.text for sign in signs}


def _listing(values: Sequence[Value], joins: set[str]) -> Value:
    """Of n = 2, 3 and of n = 2, n = 3 both are n; x < 1 or x > 3 is one set."""
    found = {value.name for value in values if isinstance(value, Named)}
    if len(found) != 1 or not isinstance(values[0], Named):
        return Listing(_flat(values))
    unnamed = [value.value if isinstance(value, Named) else value for value in values]
    reals = [value for value in unnamed if isinstance(value, Reals)]
    if len(reals) == len(values) and joins <= {"or"}:
        return Named(values[0].name, united([p for value in reals for p in value.pieces]))
    if len(reals) == len(values) and joins <= {"and"}:
        return Named(values[0].name, reduce(common, reals))
    if any(isinstance(value, Named) for value in values[1:-1]) and not all(
        isinstance(value, Named) for value in values
    ):
        raise NotUnderstood("some of a list have a name and some have none")
    return Named(values[0].name, Listing(_flat(unnamed)))


def _flat(values: Sequence[Value]) -> tuple[Value, ...]:
    """± within a list makes two of it."""
    return tuple(
        item for value in values for item in (value.items if type(value) is Listing else [value])
    )


def _one(tokens: Tokens) -> Value:
    if not tokens:
        raise NotUnderstood("nothing where something could stand")
    if any(token.text in SIGNS for token in tokens):
        return _both_signs(tokens)
    found = sides(tokens)
    if len(found) > 1:
        return related(found, read)
    if list(tokens) == [DOTS]:
        return Dots()
    closing = matching(tokens)
    if closing == len(tokens) - 1:
        return _enclosed(tokens)
    if _is_set(tokens):
        return _set(tokens)
    parts, _ = split(tokens, lambda token: token == COLON)
    return quantity(tokens) if len(parts) == 1 else _ratio(parts)


def _both_signs(tokens: Tokens) -> Value:
    """3 ± 2 is 5 and 1; all its signs are the upper ones, and then all the lower ones."""
    values = []
    for which in (0, 1):
        signed = [
            Token("op", SIGNS[token.text][which]) if token.text in SIGNS else token
            for token in tokens
        ]
        values.append(_one(signed))
    return _listing(values, set())


def _ratio(parts: Sequence[Tokens]) -> Ratio:
    last, word = [*parts[-1]], ""
    while len(last) > 1 and last[-1].kind == "word":
        word = last.pop().text.lower() + word
    return Ratio(tuple(expression(part) for part in [*parts[:-1], last]), word)


def _enclosed(tokens: Tokens) -> Value:
    first, last, inner = tokens[0], tokens[-1], tokens[1:-1]
    if first.kind == "env":
        return _matrix(first, inner)
    if first.text == "{":
        return read(inner)
    if first.text == "⦃":
        return _collection(inner)
    if first.text not in OPENING:
        return quantity(tokens)
    parts, _ = split(inner, lambda token: token in (COMMA, SEMICOLON))
    if len(parts) == 1 and first.text == "(" and last.text == ")":
        return _one(inner)
    return Bracketed(first.text, last.text, _items(parts))


def _items(parts: Sequence[Tokens]) -> tuple[Value, ...]:
    if len(parts) > ELEMENTS:
        raise NotUnderstood("so many elements")
    if not all(parts):
        raise NotUnderstood("brackets with nothing in one place")
    return tuple(_one(part) for part in parts)


def _collection(inner: Tokens) -> Value:
    """{1, 2}, or {x | x > 3}, which is what x can be."""
    if not inner:
        return Collection(())
    conditions = [place for place, token in enumerate(inner) if token in (BAR, COLON)]
    if conditions:
        subject, value = inner[: conditions[0]], _one(inner[conditions[0] + 1 :])
        is_any = list(subject[1:]) in ([], [Token("rel", "∈"), REAL])
        if is_any and isinstance(value, Named) and [value.name] == [t.text for t in subject[:1]]:
            return as_reals(value.value)
        raise NotUnderstood("a set by a condition")
    parts, _ = split(inner, lambda token: token in (COMMA, SEMICOLON))
    return Collection(_flat(_items(parts)))


def _straightened(tokens: Tokens) -> Tokens:
    """]0, 1[ and [0, 1[ are (0, 1) and [0, 1)."""
    start = 2 if len(tokens) > 2 and tokens[1] == Token("rel", "∈") else 0
    first, last = tokens[start : start + 1], tokens[-1:]
    if not first or (first[0].text != "]" and (first[0].text, last[0].text) != ("[", "[")):
        return tokens
    opening = Token("op", "[" if first[0].text == "[" else "(")
    closing = Token("op", "]" if last[0].text == "]" else ")")
    return (*tokens[:start], opening, *tokens[start + 1 : -1], closing)


def _is_set(tokens: Tokens) -> bool:
    return tokens[0] in (REAL, NOTHING) or bool(split(tokens, _joins_sets)[1])


def _joins_sets(token: Token) -> bool:
    return token.kind == "op" and token.text in ("cup", "cap", "setminus")


def _set(tokens: Tokens) -> Value:
    """From left to right, and so of one sign only, or with brackets."""
    if list(tokens) in ([NOTHING], [REAL]):
        return Collection(()) if tokens[0] == NOTHING else ALL
    cut = _joins_sets if tokens[0] != REAL else lambda t: _joins_sets(t) or t == MINUS
    parts, signs = split(tokens, cut)
    if len({*signs}) > 1 or parts == [tokens]:
        raise NotUnderstood("signs between sets, which are none or of two kinds")
    values = [_one(part) for part in parts if part]
    if len(values) < len(parts):
        raise NotUnderstood("a sign without a set")
    if signs and signs[0].text == "cup" and all(isinstance(value, Collection) for value in values):
        return Collection(tuple(item for value in values for item in value.items))  # type: ignore
    how = {"cap": common, "setminus": without, "-": without}
    first, *rest = [as_reals(value) for value in values]
    if signs and signs[0].text in how:
        return reduce(how[signs[0].text], rest, first)
    return united([piece for reals in (first, *rest) for piece in reals.pieces])


def _matrix(first: Token, inner: Tokens) -> Value:
    if first.text.partition("{")[2] not in MATRICES:
        raise NotUnderstood(f"{first.text} is no matrix")
    rows, _ = split(inner, lambda token: token.kind == "row")
    if rows and not rows[-1]:
        rows.pop()
    cells = [split(row, lambda token: token == Token("op", "&"))[0] for row in rows]
    widths = {len(row) for row in cells}
    if len(widths) != 1 or len(cells) > ELEMENTS or widths.pop() > ELEMENTS:
        raise NotUnderstood("rows that differ in length")
    return Matrix(tuple(tuple(expression(cell) for cell in row) for row in cells))

"""Sets from tokens: by their members, by a condition, and of sets by signs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce

from services.scoring.scorers.math.kinds import Collection, Listing, Named, Piece, Reals, Value
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.reals import ALL, as_reals, common, united, without
from services.scoring.scorers.math.split import Tokens, split
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import OO, Num

COLON, BAR, NOTHING, MINUS = (Token("op", text) for text in ":|∅-")
IN, REAL = Token("rel", "∈"), Token("field", "R")

POSITIVE = ("R^+", "R_+", "R^{+}", "R_{+}", "R_{>0}")

Read = Callable[[Tokens], Value]


def is_set(tokens: Tokens) -> bool:
    """Whether it is one by its signs: R, the empty set, or sets with signs between them."""
    return tokens[0] in (REAL, NOTHING) or bool(split(tokens, _joins_sets)[1])


def set_of(tokens: Tokens, read: Read) -> Value:
    """From left to right, and so of one sign only, or with brackets; `read` reads one set."""
    if list(tokens) in ([NOTHING], [REAL]):
        return Collection(()) if tokens[0] == NOTHING else ALL
    if "".join(token.text for token in tokens) in POSITIVE:
        return Reals((Piece(Num(Fraction(0)), False, OO, False),))
    cut = _joins_sets if tokens[0] != REAL else lambda t: _joins_sets(t) or t == MINUS
    parts, signs = split(tokens, cut)
    if len({*signs}) > 1 or parts == [tokens]:
        raise NotUnderstood("signs between sets, which are none or of two kinds")
    if not all(parts):
        raise NotUnderstood("a sign without a set")
    return _joined([read(part) for part in parts], signs[0].text)


def by_condition(inner: Tokens, read: Read) -> Value | None:
    """{x | x > 3} is what x can be; None where no condition stands between the braces."""
    place = next((n for n, token in enumerate(inner) if token in (BAR, COLON)), None)
    if place is None:
        return None
    subject, value = inner[:place], read(inner[place + 1 :])
    is_any = list(subject[1:]) in ([], [IN, REAL])
    if is_any and isinstance(value, Named) and [value.name] == [t.text for t in subject[:1]]:
        found = value.value
        return Collection(found.items) if isinstance(found, Listing) else as_reals(found)
    raise NotUnderstood("a set by a condition")


def _joins_sets(token: Token) -> bool:
    return token.kind == "op" and token.text in ("cup", "cap", "setminus")


def _joined(values: Sequence[Value], sign: str) -> Value:
    finite = [value for value in values if isinstance(value, Collection)]
    if sign == "cup" and len(finite) == len(values):
        return Collection(tuple(item for value in finite for item in value.items))
    first, *rest = [as_reals(value) for value in values]
    if sign == "cup":
        return united([piece for reals in (first, *rest) for piece in reals.pieces])
    return reduce(common if sign == "cap" else without, rest, first)

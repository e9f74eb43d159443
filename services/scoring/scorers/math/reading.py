"""From tokens to a value of one kind, or NotUnderstood: lists, brackets, ratios, choices.

What stands between signs is read by `expressions`, behind a number by `quantities`, with a relation
in it by `relations`, in rows by `arrays`; sets by `sets`, and words by `words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from services.scoring.scorers.math.arrays import array, multiple, without_brace
from services.scoring.scorers.math.expressions import expression
from services.scoring.scorers.math.kinds import (
    Bracketed,
    Choice,
    Collection,
    Dots,
    Equation,
    Inequality,
    Listing,
    Matrix,
    Named,
    Ratio,
    Reals,
    Value,
)
from services.scoring.scorers.math.limits import ELEMENTS, NotUnderstood
from services.scoring.scorers.math.quantities import quantity, total_of
from services.scoring.scorers.math.reals import ALL, common, is_punctured, united
from services.scoring.scorers.math.relations import related, sides
from services.scoring.scorers.math.sets import by_condition, is_set, set_of
from services.scoring.scorers.math.split import COMMA, SEMICOLON, Tokens, matching, split, trimmed
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.words import said

DOTS, COLON, BAR = (Token("op", text) for text in "…:|")
SIGNS = {"±": ("+", "-"), "∓": ("-", "+")}
OPEN = Token("op", "(")
POINTS = frozenset("ABDMNOQRST")
CHOICES = frozenset("ABCDEFGHIJ")
OPENING = ("(", "[", "⟨")


def read(tokens: Tokens) -> Value:
    """Raises NotUnderstood, and TooLarge for a number of too many digits."""
    tokens = trimmed(tokens)
    if not tokens:
        raise NotUnderstood("it is empty")
    if all(token.kind == "word" for token in tokens) and len(tokens[0].text + tokens[-1].text) > 2:
        return said(tokens)
    if _is_choice(tokens):
        return Choice(tokens[1].text, read(tokens[3:]))
    parts, joins = _listed(_straightened(without_brace(tokens)))
    if len(parts) == 1:
        return _one(parts[0])
    if len(parts) > ELEMENTS:
        raise NotUnderstood("a list of so many")
    return _listing([_one(part) for part in parts], joins)


def _is_choice(tokens: Tokens) -> bool:
    """Whether it is one letter of several and what stands there: \\textbf{(C) } 42."""
    letters = [n for n, t in enumerate(tokens) if t.kind == "word" and t.text in CHOICES]
    if letters != [1] or len(tokens) < 4 or _parts_items(tokens[3]):
        return False
    return tokens[0].text == "(" and tokens[2].text == ")"


def _parts_items(token: Token) -> bool:
    return token in (COMMA, SEMICOLON) or token.kind == "sep"


def _listed(tokens: Tokens) -> tuple[list[Tokens], set[str]]:
    """The parts of a list, and what joins them: ", and" is one."""
    parts, signs = split(tokens, _parts_items)
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
    if joins == {"and"} and (total := total_of(values)):
        return total
    found = {value.name for value in values if isinstance(value, Named)}
    is_mixed = any(isinstance(value, Equation | Inequality) for value in values)
    if len(found) != 1 or is_mixed or not isinstance(values[0], Named):
        return Listing(_flat(values))
    unnamed = [value.value if isinstance(value, Named) else value for value in values]
    reals = [value for value in unnamed if isinstance(value, Reals)]
    if len(reals) == len(values) and (both := _met(reals, joins)):
        return Named(values[0].name, both)
    if any(isinstance(value, Named) for value in values[1:-1]) and not all(
        isinstance(value, Named) for value in values
    ):
        raise NotUnderstood("some of a list have a name and some have none")
    return Named(values[0].name, Listing(_flat(unnamed)))


def _met(reals: Sequence[Reals], joins: set[str]) -> Reals | None:
    """The condition that several are; None for what may be a list of them.

    x > 0, x != 1 are both; x != 1 or x != 2 says nothing, and was meant as something.
    """
    takes_away = [value == ALL or is_punctured(value) for value in reals]
    if joins == {"or"} and not any(takes_away):
        return united([piece for value in reals for piece in value.pieces])
    if joins == {"and"} or (joins == {","} and any(takes_away)):
        return reduce(common, reals)
    if any(takes_away):
        raise NotUnderstood("conditions of which it is not clear whether all hold")
    return None


def _flat(values: Sequence[Value]) -> tuple[Value, ...]:
    """± within a list makes two of it."""
    return tuple(
        item for value in values for item in (value.items if type(value) is Listing else [value])
    )


def _one(tokens: Tokens) -> Value:
    if not tokens:
        raise NotUnderstood("nothing where something could stand")
    found = sides(tokens)
    signs = [token.text for token in tokens if token.text in SIGNS]
    if signs and not _has_set(tokens):
        return _both_signs(tokens, signs)
    if len(found) > 1:
        return related(found, read)
    if list(tokens) == [DOTS]:
        return Dots()
    if matching(tokens) == len(tokens) - 1:
        return _enclosed(tokens)
    if is_set(tokens):
        return set_of(tokens, _one)
    if scaled := multiple(tokens, _one):
        return scaled
    if tokens[0].kind == "name" and tokens[0].text in POINTS and (point := _point(tokens[1:])):
        return Named(tokens[0].text, point)
    parts, _ = split(tokens, lambda token: token == COLON)
    return quantity(tokens) if len(parts) == 1 else _ratio(parts)


def _point(tokens: Tokens) -> Bracketed | None:
    """What follows the letter in A(1, 2), or None where that is a factor."""
    if list(tokens[:1]) != [OPEN] or matching(tokens) != len(tokens) - 1:
        return None
    value = _enclosed(tokens)
    return value if isinstance(value, Bracketed) else None


def _has_set(tokens: Tokens) -> bool:
    """Whether it is a finite set, or something in one: each of its members has its own signs."""
    start = next((n for n, token in enumerate(tokens) if token.text == "∈"), -1) + 1
    found = tokens[start:]
    return bool(found) and found[0].text == "⦃" and matching(found) == len(found) - 1


def _both_signs(tokens: Tokens, signs: Sequence[str]) -> Value:
    """3 ± 2 is 5 and 1; with ∓ all signs are the upper ones, and then all the lower ones."""
    if len(signs) > 1 and "∓" not in signs:
        raise NotUnderstood("which signs go together?")
    values = []
    for which in (0, 1):
        signed = [
            Token("op", SIGNS[token.text][which]) if token.text in SIGNS else token
            for token in tokens
        ]
        values.append(_one(signed))
    is_unequal = any(token.text == "!=" for token in tokens)
    return _listing(values, {"and"} if is_unequal else set())


def _ratio(parts: Sequence[Tokens]) -> Ratio:
    last, word = [*parts[-1]], ""
    while len(last) > 1 and last[-1].kind == "word":
        word = last.pop().text.lower() + word
    return Ratio(tuple(expression(part) for part in [*parts[:-1], last]), word)


def _enclosed(tokens: Tokens) -> Value:
    first, last, inner = tokens[0], tokens[-1], tokens[1:-1]
    if first.kind == "env":
        return array(tokens, _one)
    if first.text == "⦃" or (first.text == "{" and list(inner[1:2]) == [BAR]):
        return by_condition(inner, read) or _collection(inner)
    if first.text == "{":
        return read(inner)
    if first.text not in OPENING:
        return quantity(tokens)
    parts, _ = split(inner, lambda token: token in (COMMA, SEMICOLON))
    if len(parts) == 1 and first.text == "(" and last.text == ")":
        return _one(inner)
    items = _items(parts)
    is_matrix = len(items) == 1 and isinstance(items[0], Matrix)
    return items[0] if is_matrix else Bracketed(first.text, last.text, items)


def _items(parts: Sequence[Tokens]) -> tuple[Value, ...]:
    if len(parts) > ELEMENTS:
        raise NotUnderstood("so many elements")
    if not all(parts):
        raise NotUnderstood("brackets with nothing in one place")
    return tuple(_one(part) for part in parts)


def _collection(inner: Tokens) -> Collection:
    parts, _ = split(inner, lambda token: token in (COMMA, SEMICOLON))
    return Collection(_flat(_items(parts)) if inner else ())


def _straightened(tokens: Tokens) -> Tokens:
    """]0, 1[ and [0, 1[ are (0, 1) and [0, 1)."""
    start = 2 if len(tokens) > 2 and tokens[1] == Token("rel", "∈") else 0
    first, last = tokens[start : start + 1], tokens[-1:]
    if not first or (first[0].text != "]" and (first[0].text, last[0].text) != ("[", "[")):
        return tokens
    opening = Token("op", "[" if first[0].text == "[" else "(")
    closing = Token("op", "]" if last[0].text == "]" else ")")
    return (*tokens[:start], opening, *tokens[start + 1 : -1], closing)

"""Answers in words, and what some of them are worth: "no solution" is the empty set."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from services.scoring.scorers.math.kinds import Collection, Expression, Text, Value
from services.scoring.scorers.math.reals import ALL
from services.scoring.scorers.math.tokens import Token
from services.scoring.scorers.math.trees import OO, Num, minus

ARTICLES = ("a", "an", "the")
COUNTS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty"
)
_NOTHING = (
    "no solution, no solutions, no real solution, no real solutions, no such solutions"
    ", there is no solution, there are no solutions, empty set, null set"
)
_EVERYTHING = "all real numbers, all reals, all real values, real numbers, set of real numbers"
PHRASES: dict[str, Value] = {
    **dict.fromkeys(_NOTHING.split(", "), Collection(())),
    **dict.fromkeys(_EVERYTHING.split(", "), ALL),
    **{word: Expression(Num(Fraction(n))) for n, word in enumerate(COUNTS.split())},
    "positive infinity": Expression(OO),
    "negative infinity": Expression(minus(OO)),
    "dne": Text(("does", "not", "exist")),
}


def said(tokens: Sequence[Token]) -> Value:
    """Words, without the article in front of them, or what they are worth."""
    words = tuple(token.text.lower() for token in tokens)
    if len(words) > 1 and words[0] in ARTICLES:
        words = words[1:]
    return PHRASES.get(" ".join(words), Text(words))

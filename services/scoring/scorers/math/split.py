"""Where a formula's tokens come apart: at signs that stand outside of all brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.scoring.scorers.math.limits import NESTING, NotUnderstood
from services.scoring.scorers.math.tokens import Token

COMMA, SEMICOLON, POINT = (Token("op", text) for text in ",;.")
OPENS = {"(": ")]", "[": "])", "{": "}", "⦃": "⦄", "⟨": "⟩", "⌊": "⌋", "⌈": "⌉"}
CLOSES = frozenset("".join(OPENS.values()))

Tokens = Sequence[Token]


def trimmed(tokens: Tokens) -> Tokens:
    """Without the punctuation of the sentence around it."""
    while tokens and tokens[-1] in (COMMA, SEMICOLON, POINT):
        tokens = tokens[:-1]
    return tokens


def split(tokens: Tokens, cuts: Callable[[Token], bool]) -> tuple[list[Tokens], list[Token]]:
    """The parts, and the signs between them; raises NotUnderstood for brackets without a match."""
    parts: list[Tokens] = []
    signs: list[Token] = []
    open_: list[str] = []
    start = 0
    for place, token in enumerate(tokens):
        _follow(token, open_)
        if not open_ and cuts(token):
            parts.append(tokens[start:place])
            signs.append(token)
            start = place + 1
    if open_:
        raise NotUnderstood(f"{open_[-1]} stays open")
    return [*parts, tokens[start:]], signs


def matching(tokens: Tokens) -> int:
    """Where the bracket is closed that the first token opens; -1 if it opens none."""
    open_: list[str] = []
    for place, token in enumerate(tokens):
        _follow(token, open_)
        if not open_:
            return place if place else -1
    return -1


def _follow(token: Token, open_: list[str]) -> None:
    if token.kind == "env":
        _follow_env(token.text, open_)
    elif token.kind == "op" and token.text in OPENS:
        open_.append(token.text)
        if len(open_) > NESTING:
            raise NotUnderstood("it is nested too deeply")
    elif (
        token.kind == "op"
        and token.text in CLOSES
        and (not open_ or token.text not in OPENS.get(open_.pop(), ""))
    ):
        raise NotUnderstood(f"{token.text} closes nothing")


def _follow_env(text: str, open_: list[str]) -> None:
    does, _, name = text.partition("{")
    if does == "\\begin":
        open_.append(name)
    elif not open_ or open_.pop() != name:
        raise NotUnderstood(f"{text} ends nothing")

r"""LaTeX and plain text as tokens: what only looks different (\left, \dfrac) becomes the same.

Nothing is dropped but space and what has no meaning; an unknown command stays a token, so that no
formula is cut short at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from services.scoring.scorers.math.limits import CHARACTERS, NotUnderstood
from services.scoring.scorers.math.patterns import FIRST, PERIOD, TOKEN, WORDS, as_latex
from services.scoring.scorers.math.signs import (
    CLOSING,
    CONSTANTS,
    FONTS,
    FUNCTIONS,
    GREEK,
    LONE_WORDS,
    MONEY,
    OPENING,
    OPERATORS,
    RELATIONS,
    SAME,
    SEPARATORS,
)
from services.scoring.scorers.math.units import is_unit, may_be_letters


class Token(NamedTuple):
    """`kind`: num, name, word, fn, const, op, rel, sep, env, or cmd for a command that is none.

    Or unclear, for what has two readings: 2023-01-05 is a date or a difference.
    """

    kind: str
    text: str


OPEN, CLOSE = Token("op", "{"), Token("op", "}")
FRACTION = Token("fn", "frac")


def tokens(formula: str) -> tuple[Token, ...]:
    """The formula's tokens; raises NotUnderstood for one that is too long."""
    if len(formula) <= CHARACTERS and not formula.isascii():
        formula = as_latex(formula)
    if len(formula) > CHARACTERS:
        raise NotUnderstood("it is too long")
    lexer = _Lexer()
    lexer.read(formula)
    return tuple(lexer.found)


def spelling(found: Sequence[Token]) -> tuple[Token, ...]:
    """The tokens without braces around a letter or a digit: k^{2} and k^2 are written alike."""
    kept: list[Token] = []
    for token in found:
        kept.append(token)
        if token == CLOSE and len(kept) > 2 and kept[-3] == OPEN and len(kept[-2].text) == 1:
            kept[-3:] = [kept[-2]]
    return tuple(kept)


class _Lexer:
    """Collects tokens. Within brackets a comma never joins digits; outside of them it may."""

    def __init__(self) -> None:
        self.found: list[Token] = []
        self._depth, self._spaced = 0, False

    def read(self, formula: str, *, as_words: bool = False) -> None:
        place = 0
        while place < len(formula):
            match = TOKEN.match(formula, place)
            assert match, "whatever stands there is an operator"
            if self._is_cut(match):
                match = FIRST.match(formula, place) or match
            place = match.end()
            self._take(match, as_words)
            self._spaced = match.lastgroup == "space"

    def _is_cut(self, match: re.Match[str]) -> bool:
        """Whether only the first digits belong together: in (1,234), and in \\frac1e-1."""
        if match.lastgroup == "num":
            return self.found[-1:] == [FRACTION] and "e" in match.group()
        return match.lastgroup == "grouped" and self._depth > 0 and "," in match.group()

    def _take(self, match: re.Match[str], as_words: bool) -> None:
        text = match.group()
        match match.lastgroup:
            case "space":
                return
            case "endless":
                self._endless(text)
            case "said":
                self._said(match["words"], match["font"])
            case "command":
                self._command(text[1:])
            case "letters":
                self._word(text) if as_words else self._letters(text)
            case None | "num" | "hex" | "repeating":
                self._add("num", text)
            case "grouped":
                self._add("num", re.sub(r"[^\d.]", "", text))
            case kind:
                self._sign(kind, text)

    def _sign(self, kind: str, text: str) -> None:
        match kind:
            case "row":
                self._add("row", "\\\\")
            case "money":
                self._add("money", MONEY[text])
            case "env":
                self._add("env", re.sub(r"\s|\*|\}\{.*", "", text).rstrip("}"))
            case "field":
                self._add("field", text.strip("} ")[-1])
            case "relation":
                self._add("rel", RELATIONS[text])
            case "unclear":
                self._add("unclear", text)
            case _:
                self._add("op", {"degree": "°", "dots": "…", "power": "^"}.get(kind, text))

    def _endless(self, text: str) -> None:
        """0.333... is 0.\\overline{3}; of 1.414... nobody knows how it goes on."""
        digits = text[: text.index(".") + 1] + re.sub(r"\D", "", text[text.index(".") :])
        if period := PERIOD.fullmatch(digits):
            block = period[4] or period[5]
            self._add("num", rf"{period[1]}{period[2]}\overline{{{block}}}")
        else:
            self._add("num", digits)
            self._add("op", "…")

    def _said(self, words: str, font: str) -> None:
        """Text: words, and whatever formula stands among them."""
        lone = words.strip()
        if (lone in FUNCTIONS or lone in SAME) and not (self._valued() and is_unit(lone)):
            self._add("fn", SAME.get(lone, lone))
        elif lone in CONSTANTS:
            self._add("const", CONSTANTS[lone])
        elif len(lone) == 1 and lone.isalpha() and self._is_variable(lone, font):
            self._letters(lone)
        elif WORDS.fullmatch(words):
            for word in words.split():
                self._word(word)
        else:
            self.read(words, as_words=True)

    def _is_variable(self, letter: str, font: str) -> bool:
        """Whether it is none of a unit or a choice: bold, or upright and behind no number."""
        if font in ("mathrm", "mathsf"):
            return letter in "ei" or not self._may_be_unit()
        return font in ("mathbf", "mathit", "bm", "boldsymbol")

    def _word(self, word: str) -> None:
        word = re.sub(r"[. ]", "", word) or word
        kind = "sep" if word in SEPARATORS else "word" if word[0].isalpha() else "op"
        self._add(kind, SEPARATORS.get(word, word))

    def _command(self, name: str) -> None:
        name = SAME.get(name, name)
        if name in FONTS:
            pass
        elif name in FUNCTIONS:
            self._add("fn", name)
        elif name in GREEK:
            self._add("name", name)
        elif name in CONSTANTS:
            self._add("const", CONSTANTS[name])
        elif name in OPERATORS:
            self._add("op", OPERATORS[name])
        elif name in RELATIONS:
            self._add("rel", RELATIONS[name])
        elif name in SEPARATORS:
            self._add("sep", SEPARATORS[name])
        else:
            self._add("cmd", name)

    def _letters(self, run: str) -> None:
        """A word, where it is one or long; else every letter is a variable."""
        name = SAME.get(run, run)
        if run in SEPARATORS:
            self._add("sep", run)
        elif "." in run:
            self._word(run)
        elif len(run) > 1 and self._valued() and is_unit(run):
            self._unit(run)
        elif name in FUNCTIONS and run != "tg":
            self._add("fn", name)
        elif run in CONSTANTS:
            self._add("const", CONSTANTS[run])
        elif len(run) > 3 or run.lower() in LONE_WORDS:
            self._add("word", run)
        else:
            for letter in run:
                self._add("const" if letter in "ei" else "name", letter)

    def _unit(self, run: str) -> None:
        """3mg is a product, and 3 mg a quantity."""
        if may_be_letters(run) and not self._spaced:
            for letter in run:
                self._add("name", letter)
        else:
            self._add("word", run)

    def _valued(self) -> bool:
        """Whether a number or the end of something stands before it."""
        last = self.found[-1] if self.found else None
        return last is not None and (last.kind in ("num", "const") or last.text in ")}]")

    def _may_be_unit(self) -> bool:
        behind = [token for token in self.found[-2:] if token.text not in "/*"]
        return self._valued() or (bool(behind) and behind[-1].kind == "word")

    def _add(self, kind: str, text: str) -> None:
        self._depth += (text in OPENING) - (text in CLOSING)
        self.found.append(Token(kind, text))

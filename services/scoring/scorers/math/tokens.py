r"""LaTeX and plain text as tokens: what only looks different (\left, \dfrac) becomes the same.

Nothing is dropped but space and what has no meaning; an unknown command stays a token, so that no
formula is cut short at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from services.scoring.scorers.math.limits import CHARACTERS, NotUnderstood
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
    UNICODE,
)
from services.scoring.scorers.math.units import is_unit


class Token(NamedTuple):
    """`kind`: num, name, word, fn, const, op, rel, sep, env, or cmd for a command that is none."""

    kind: str
    text: str


OPEN, CLOSE = Token("op", "{"), Token("op", "}")

_TOKEN = re.compile(
    r"""
    (?P<row>\\\\(?:\[[^\]\n]{0,20}\])?)
  | (?P<money>\\\$|[€£¥₹])
  | (?P<space>\s+|~|\$|\\[,;:!>\ ()\[\]]
        |\\(?:left|right)(?![A-Za-z])\.?
        |\\(?:middle|[bB]igg?[lrm]?|(?:display|text|script)style|limits|q?quad)(?![A-Za-z])
        |\\(?:[hv]space|h?phantom)\*?\{[^{}]*\})
  | (?P<said>\\(?P<font>text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf)|[mh]box|operatorname|bm
        |boldsymbol)\*?\s*\{(?P<words>[^{}]*)\})
  | (?P<env>\\(?:begin|end)\s*\{\s*[A-Za-z]+\*?\s*\}(?:\{[clr|@\ ]*\})?)
  | (?P<field>\\mathbb\s*\{?\s*[RNZQC]\s*\}?)
  | (?P<degree>\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}))
  | (?P<grouped>[1-9]\d{0,2}(?:(?:,(?:\\!)?\d{3})+|(?:\\!,\d{3})+|(?:\{,\}\d{3})+|(?:\\,\d{3})+)
        (?!\d|,\d)(?:\.\d+)?)
  | (?P<repeating>\d*\.\d*\\(?:overline|bar|dot)\s*\{\d+\})
  | (?P<hex>(?=[A-F]*[0-9])(?=[0-9]*[A-F])[0-9A-F]{2,}(?=\s*_\s*\{?\s*1[1-6](?!\d)))
  | (?P<num>\d+(?:\.\d+)?(?:E[+-]?\d+)?|\.\d+)
  | (?P<dots>\.\.\.)
  | (?P<command>\\(?:[A-Za-z]+|.))
  | (?P<letters>[A-Za-z]+)
  | (?P<relation><=|>=|!=|==|[=<>])
  | (?P<power>\*\*)
  | (?P<op>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = re.compile(r"[A-Za-z.' -]*")
_FIRST = re.compile(r"\d+")


def tokens(formula: str) -> tuple[Token, ...]:
    """The formula's tokens; raises NotUnderstood for one that is too long."""
    if len(formula) > CHARACTERS:
        raise NotUnderstood("it is too long")
    if not formula.isascii():
        for sign, latex in UNICODE.items():
            formula = formula.replace(sign, latex)
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
        self._depth = 0

    def read(self, formula: str, *, as_words: bool = False) -> None:
        place = 0
        while place < len(formula):
            match = _TOKEN.match(formula, place)
            assert match, "whatever stands there is an operator"
            if match.lastgroup == "grouped" and self._depth and "," in match.group():
                match = _FIRST.match(formula, place)
                assert match, "a group of digits begins with one"
            place = match.end()
            self._take(match, as_words)

    def _take(self, match: re.Match[str], as_words: bool) -> None:
        text = match.group()
        match match.lastgroup:
            case "space":
                pass
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
            case "relation":
                self._add("rel", RELATIONS[text])
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
            case _:
                self._add("op", {"degree": "°", "dots": "…", "power": "^"}.get(kind, text))

    def _said(self, words: str, font: str) -> None:
        """Text: words, and whatever formula stands among them."""
        lone = words.strip()
        is_math = font not in ("operatorname", "mbox", "hbox") and font.startswith(("math", "b"))
        if lone in FUNCTIONS or lone in SAME:
            self._add("fn", SAME.get(lone, lone))
        elif is_math and len(lone) == 1 and lone.isalpha() and (lone in "ei" or not self._valued()):
            self._letters(lone)
        elif _WORDS.fullmatch(words):
            for word in words.split():
                self._word(word)
        else:
            self.read(words, as_words=True)

    def _word(self, word: str) -> None:
        word = word.replace(".", "") or word
        kind = "sep" if word in SEPARATORS else "word"
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
        elif len(run) > 1 and self._valued() and is_unit(run):
            self._add("word", run)
        elif name in FUNCTIONS:
            self._add("fn", name)
        elif run in CONSTANTS:
            self._add("const", CONSTANTS[run])
        elif len(run) > 3 or run.lower() in LONE_WORDS:
            self._add("word", run)
        else:
            for letter in run:
                self._add("const" if letter in "ei" else "name", letter)

    def _valued(self) -> bool:
        """Whether a number or the end of something stands before it."""
        last = self.found[-1] if self.found else None
        return last is not None and (last.kind in ("num", "const") or last.text in ")}]")

    def _add(self, kind: str, text: str) -> None:
        self._depth += (text in OPENING) - (text in CLOSING)
        self.found.append(Token(kind, text))

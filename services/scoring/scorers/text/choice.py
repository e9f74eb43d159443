"""The scorer `choice`: which of the options an answer names, by its label or by its text.

Where the answer stands is in `marks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.characters import folded
from services.scoring.scorers.text.marks import read_answer
from services.scoring.scorers.text.strings import compiled

Case = Literal["any", "same"]

LABELS = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J")
CACHED = 256

_AROUND = r"\s*_`$\"'\u201c\u201d\u2018\u2019(\[{\u3010"
_OPEN = rf"(?:[{_AROUND}]|\\(?:text|textbf|mathrm|mathbf|mathsf|boxed|fbox)\s*\{{|\\\()*"
_SET = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathsf)\s*\{([^{}]*)\}")
_LEAD = (
    r"(?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:answer|option|choice|letter)\b"
    r"\s*(?:is\b|:)?"
)
_CLOSE = r"(?P<close>(?:[\s*_`$\"'\u201c\u201d\u2018\u2019)\]}\u3011]|\\\))*)"
_ENDS = " \t\r\n*_`$\"'\u201c\u201d\u2018\u2019"
_STOPS = ".,;:\u3001\u3002"
_BEHIND = re.compile(r"[.,;:](?=[\s*_`]|$)|[()\u3001\u3002]|\s*[\-\u2013\u2014]\s|\n")
"""What stands between a label and the words that follow it."""
_CLAUSE = re.compile(r"(?:because|since|as|is|for|due)\b")
_DENIED = re.compile(r"\W*(?:(?:is|was)\s+(?:not|wrong|incorrect|false)\b|isn['\u2019]t)", re.I)


class Options(NamedTuple):
    """What can be chosen: the labels, the text of each where it is known, and the right label."""

    labels: tuple[str, ...]
    texts: Mapping[str, str]
    right: str


class Choice:
    """1 where the answer names the right option and no other, else 0.

    The reference is the right label, or a table: `answer`, the label, or the number of the option
    from 0, or its text; and `choices`, a list of texts, a table of texts by label, or a table of a
    list `label` and a list `text`. A letter that merely occurs is no answer.
    """

    version = "1"

    def __init__(
        self,
        *,
        labels: tuple[str, ...] = LABELS,
        case: Case = "any",
        extract: str | None = None,
    ) -> None:
        """`labels` in their order; with `case` "same" a small letter is no label.

        `extract` is where the answer stands: `marks.read_answer`. Raises ConfigError for what is no
        pattern, and for labels that cannot be told apart.
        """
        if not _differ(labels):
            rule, remedy = "two labels are the same word, or one is empty", "give each a word"
            raise ConfigError("scoring.scorers.labels", [*labels], rule=rule, remedy=remedy)
        self._labels, self._case = labels, case
        self._extract = None if extract is None else compiled(extract, at="scoring.scorers.extract")

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for a reference that names no option."""
        options = options_of(answer.reference, self._labels)
        try:
            named = read_answer(answer, self._extract, partial(self._named, options))
        except NoAnswer as nothing:
            return verdict(nothing.why)
        return verdict(Why.RIGHT if named == options.right else Why.WRONG)

    def _named(self, options: Options, text: str, *, alone: bool) -> str:
        """The label of the option; raises NoAnswer."""
        text = folded(text).strip()
        found = _label_pattern(options.labels, self._case).match(text)
        bare = found and not found["rest"].strip(_ENDS + _STOPS)
        if not bare and (named := _by_text(text, options.texts)):
            return named
        if not found:
            raise NoAnswer(Why.NOT_UNDERSTOOD)
        return _labelled(found, options, alone=alone)


def options_of(reference: Any, labels: Sequence[str]) -> Options:
    """Raises ValueError for a reference that names no option."""
    if not isinstance(reference, dict):
        return Options(tuple(labels), {}, _right(reference, labels, {}))
    choices = reference.get("choices")
    match choices:
        case {"label": [*known], "text": [*texts]} if len(known) == len(texts):
            pairs = [*zip(known, texts, strict=True)]
        case dict():
            pairs = [*choices.items()]
        case [*texts] if len(texts) <= len(labels):
            pairs = [*zip(labels, texts, strict=False)]
        case _:
            raise ValueError("the reference has no `choices`, or more than there are labels")
    table = {str(label): str(text) for label, text in pairs}
    if len(table) != len(pairs) or not table or not _differ([*table]):
        raise ValueError("the labels of the reference are not one for each option")
    return Options((*table,), table, _right(reference.get("answer"), (*table,), table))


def _right(answer: Any, labels: Sequence[str], texts: Mapping[str, str]) -> str:
    """Of a label, a number or a text; raises ValueError."""
    written = str(answer).strip()
    if isinstance(answer, str | int) and not isinstance(answer, bool):
        for label in labels:
            if label.casefold() == written.casefold():
                return label
        if isinstance(answer, int) and texts and 0 <= answer < len(labels):
            return labels[answer]
        found = [label for label, text in texts.items() if text.strip() == written]
        if len(found) == 1:
            return found[0]
    raise ValueError(f"the reference names none of the options {', '.join(labels)}")


def _by_text(text: str, texts: Mapping[str, str]) -> str | None:
    """The label of the one option whose text this is: as it is written, or else about so."""
    for reading in (_words, _about):
        wanted = reading(text)
        found = [label for label, option in texts.items() if reading(option) == wanted]
        if wanted and found:
            return found[0] if len(found) == 1 else None
    return None


def _words(text: str) -> str:
    return " ".join(folded(text).split())


def _about(text: str) -> str:
    """Without capitals, markup around it and a stop behind it."""
    return _words(_SET.sub(r"\1", text)).casefold().strip(_ENDS).rstrip(_ENDS + _STOPS)


def _labelled(found: re.Match[str], options: Options, *, alone: bool) -> str:
    """The label, if what follows it speaks of no other option; raises NoAnswer."""
    written, rest = found["label"], found["rest"]
    label = next(one for one in options.labels if one.casefold() == written.casefold())
    if not rest.strip(_ENDS + _STOPS):
        return label
    parted = bool(_BEHIND.match(rest) or re.search(r"[)\]}\n:]", found["close"]))
    words = rest.lstrip(_STOPS + ") \t\n")
    readings = (words, words.lstrip("-\u2013\u2014 "), words.strip("() "))
    told = next((one for text in readings if (one := _by_text(text, options.texts))), None)
    if told == label:
        return label
    if told:
        raise NoAnswer(Why.HEDGED)
    if _mentions(options.labels, label).search(rest) or _opens_with_another(words, label, options):
        raise NoAnswer(Why.HEDGED)
    clause = written == label and _CLAUSE.match(rest)
    if alone:
        clause, parted = False, parted and "\n" not in rest.strip() and not options.texts
    if _DENIED.match(rest) or not (parted or clause):
        raise NoAnswer(Why.NOT_UNDERSTOOD)
    return label


def _opens_with_another(words: str, label: str, options: Options) -> bool:
    """Whether the letter and the text that follows it disagree."""
    start = _about(words)
    own = _about(options.texts.get(label, ""))
    others = (_about(text) for one, text in options.texts.items() if one != label)
    if own and start.startswith(own):
        return False
    return any(other and re.match(rf"{re.escape(other)}(?!\w)", start) for other in others)


@lru_cache(maxsize=CACHED)
def _label_pattern(labels: tuple[str, ...], case: Case) -> re.Pattern[str]:
    """A label at the start, and the rest."""
    flags = re.DOTALL | (re.IGNORECASE if case == "any" else 0)
    lead = rf"(?:(?i:{_LEAD}){_OPEN})?"
    return re.compile(
        rf"{_OPEN}{lead}(?P<label>{_either(labels)})(?![\w'\u2019]){_CLOSE}(?P<rest>.*)", flags
    )


@lru_cache(maxsize=CACHED)
def _mentions(labels: tuple[str, ...], own: str) -> re.Pattern[str]:
    """Another label: joined to the first, or alone where no word of a sentence follows it.

    So the article in "B. A cell divides" and the clause in "B, because C is too short" are none.
    """
    others = _either([label for label in labels if label != own] or ["\0"])
    joined = (
        r"(?i:\b(?:or|and|nor|vs)\b|[,/&|+\-])[\s(\[*]*(?i:(?:maybe|perhaps|possibly|option)\s+)?"
    )
    return re.compile(
        rf"{joined}(?i:{others})(?![\w'\u2019])|(?<![\w'\u2019])(?:{others})(?![\w'\u2019]|\s+[a-z])"
    )


def _either(words: Sequence[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _differ(labels: Sequence[str]) -> bool:
    """Whether they can be told apart, whatever their case."""
    return all(labels) and len({label.casefold() for label in labels}) == len(labels)

"""The scorers `exact` and `regex`, which compare text, and what others need of patterns."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.places import behind_reasoning, reasoning_end

Group = int | str


def exact(answer: Answer) -> Verdict:
    """1 where what follows the reasoning is the reference; white space around either is no matter.

    Nothing else is made alike but how a letter with an accent is encoded (NFC). Raises ValueError
    for a reference that is no text and no number, or is empty.
    """
    wanted = written(answer.reference)
    try:
        found = behind_reasoning(answer.text, answer.prompt)
    except NoAnswer as nothing:
        return verdict(nothing.why)
    return verdict(Why.RIGHT if _composed(found) == wanted else Why.WRONG)


class Regex:
    """1 where the pattern is found; with a `group`, where that of the last match is the reference.

    The last match and no other: whoever lists all answers has given the one that he ended with. A
    group that begins within the reasoning is no answer; a pattern alone is looked for everywhere.
    White space around either is no matter. The pattern is Python's: `(?s)` in front lets a dot
    match new lines.
    """

    def __init__(self, *, pattern: str, group: Group | None = None) -> None:
        """Raises ConfigError for what is no pattern, or has no such group."""
        self._pattern, self._group = compiled(pattern, at="scoring.scorers.pattern"), group
        if group is not None:
            check_group(self._pattern, group, at="scoring.scorers.group")

    def __call__(self, answer: Answer) -> Verdict:
        """A text without a match is worth 0.

        Raises ValueError for a reference that is to be compared and is no text and no number.
        """
        if self._group is None:
            found = self._pattern.search(answer.text)
            return verdict(Why.RIGHT if found else Why.NO_ANSWER)
        wanted = written(answer.reference)
        try:
            start = reasoning_end(answer.text, answer.prompt)
        except NoAnswer as nothing:
            return verdict(nothing.why)
        match = last_match(self._pattern, answer.text)
        if match is None or match.start(self._group) < start:
            return verdict(Why.NO_ANSWER)
        return verdict(Why.RIGHT if _composed(match[self._group]) == wanted else Why.WRONG)


def written(reference: Any) -> str:
    """A reference as text; raises ValueError for one that is none, or is empty."""
    if isinstance(reference, bool) or not isinstance(reference, str | int | float):
        raise ValueError(f"the reference is no text and no number: {reference!r:.80}")
    if text := _composed(str(reference)):
        return text
    raise ValueError("the reference is empty")


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def compiled(pattern: str, *, at: str) -> re.Pattern[str]:
    """The pattern; raises ConfigError."""
    try:
        return re.compile(pattern)
    except re.error as exc:
        rule = f"is no pattern ({exc})"
        raise ConfigError(at, pattern, rule=rule, remedy="write it in Python's syntax") from exc


def check_group(pattern: re.Pattern[str], group: Group, *, at: str) -> None:
    """Raises ConfigError unless the pattern has the group, by its number or its name."""
    known: list[Group] = [*range(pattern.groups + 1), *pattern.groupindex]
    if group not in known:
        remedy = f"choose one of {', '.join(map(str, known))}"
        raise ConfigError(at, group, rule="the pattern has no such group", remedy=remedy)


def last(pattern: re.Pattern[str], text: str, group: Group) -> str | None:
    """The group of the last match, without white space around it; None where it took no part."""
    match = last_match(pattern, text)
    return match[group].strip() if match and match[group] is not None else None


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of those that do not overlap, but for one of nothing, as .* has behind all text."""
    found = None
    for match in pattern.finditer(text):
        if match.group() or any(match.groups()):
            found = match
    return found

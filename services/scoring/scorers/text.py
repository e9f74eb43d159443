"""Scorers that compare text."""

from __future__ import annotations

import re

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict

Group = int | str


def exact(answer: Answer) -> Verdict:
    """1 where the text is the reference, written out; white space around either is no matter."""
    return Verdict(reward=float(answer.text.strip() == str(answer.reference).strip()))


class Regex:
    """1 where the pattern is found; with a `group`, where that of the last match is the reference.

    The last match and no other: whoever lists all answers has given the one that he ended with.
    White space around either is no matter. The pattern is Python's: `(?s)` in front lets a dot
    match new lines.
    """

    def __init__(self, *, pattern: str, group: Group | None = None) -> None:
        """Raises ConfigError for what is no pattern, or has no such group."""
        self._pattern, self._group = compiled(pattern, at="scoring.scorers.pattern"), group
        if group is not None:
            check_group(self._pattern, group, at="scoring.scorers.group")

    def __call__(self, answer: Answer) -> Verdict:
        """A text without a match is worth 0."""
        found = last(self._pattern, answer.text, self._group or 0)
        right = found is not None
        if right and self._group is not None:
            right = found == str(answer.reference).strip()
        return Verdict(reward=float(right))


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
    found: str | None = None
    for match in pattern.finditer(text):
        found = match[group]
    return None if found is None else found.strip()

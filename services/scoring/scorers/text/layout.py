"""The scorer `format`: whether a text is made of the tags that it should be made of.

Nothing is said about what stands in them but that there is something.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.characters import says_something
from services.scoring.scorers.text.places import REASONING, behind_reasoning

Outside = Literal["nothing", "behind", "anything"]

_NAME = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)
_WORDS = re.compile(r"\w+")
_BARE_TAG = re.compile(r"</?[A-Za-z][\w.-]*\s*/?>")


class Section(NamedTuple):
    """A tag that is there once, closed and in its place: where it begins and ends, and its body."""

    start: int
    end: int
    body: str


class Format:
    """1 where the text is the `tags` in their order, each once, closed, and with something in it.

    Empty is a body of white space, punctuation or characters that show nothing, one that is the
    tag's own name, and one of two words or more that the prompt has in the same tag. Where the
    prompt ends with the first opening tag, it is not to be repeated.
    """

    version = "1"

    def __init__(
        self,
        *,
        tags: tuple[str, ...],
        outside: Outside = "nothing",
        partial: Annotated[float, Meta(ge=0, lt=1)] = 0.0,
    ) -> None:
        """`outside` is what stands around the tags, besides white space: "behind" them there must
        be something, and nowhere else.

        A text of which a tag is missing or empty, or around which is something, gets `partial`
        times the share of its tags that are right, which is less than 1. One whose tags are
        doubled, nested or in another order gets nothing. Raises ConfigError for what is no tag.
        """
        _check_tags(tags)
        self._tags, self._outside, self._partial = tags, outside, partial
        self._reasons = any(REASONING.fullmatch(f"<{tag}>") for tag in tags)

    def __call__(self, answer: Answer) -> Verdict:
        """The outcome is 1 for a text that is right as a whole."""
        try:
            text = answer.text
            if not self._reasons:
                text = behind_reasoning(text, answer.prompt)
        except NoAnswer as nothing:
            return verdict(nothing.why)
        opening = f"<{self._tags[0]}>"
        if answer.prompt.rstrip().endswith(opening):
            text = opening + text
        return self._graded(text, answer.prompt)

    def _graded(self, text: str, prompt: str) -> Verdict:
        try:
            found = sections(text, self._tags)
        except NoAnswer as nothing:
            return verdict(nothing.why)
        full = [
            s for s, tag in zip(found, self._tags, strict=True) if s and _is_full(s, tag, prompt)
        ]
        if any(section is None for section in found) or not self._is_alone(text, found):
            why = Why.MALFORMED
        else:
            why = Why.RIGHT if len(full) == len(found) else Why.EMPTY
        share = self._partial * len(full) / len(found)
        return Verdict(
            reward=1.0 if why is Why.RIGHT else share, outcome=float(why is Why.RIGHT), reason=why
        )

    def _is_alone(self, text: str, found: Sequence[Section | None]) -> bool:
        ends = [0, *(section.end for section in found if section)]
        starts = [*(section.start for section in found if section), len(text)]
        *between, behind = (text[end:start] for end, start in zip(ends, starts, strict=True))
        if self._outside == "anything":
            return True
        fits = says_something(behind) if self._outside == "behind" else not behind.strip()
        return fits and not any(map(str.strip, between))


def sections(text: str, tags: Sequence[str]) -> list[Section | None]:
    """One for each tag; None where it is missing, or not opened or not closed.

    Raises NoAnswer where one is doubled, or begins before an earlier one has ended.
    """
    found: list[Section | None] = []
    last = 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        start, end = text.find(opening), text.find(closing)
        if text.count(opening) > 1 or text.count(closing) > 1:
            raise NoAnswer(Why.MALFORMED)
        if start < 0 or end < 0:
            found.append(None)
            continue
        if not last <= start < end:
            raise NoAnswer(Why.MALFORMED)
        last = end + len(closing)
        found.append(Section(start, last, text[start + len(opening) : end]))
    return found


def _is_full(section: Section, tag: str, prompt: str) -> bool:
    body = _BARE_TAG.sub("", section.body)
    words = _WORDS.findall(body.casefold())
    if not says_something(body) or words == [tag.casefold()]:
        return False
    shown = re.findall(rf"(?s)<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", prompt)
    return len(words) < 2 or words not in [_WORDS.findall(one.casefold()) for one in shown]


def _check_tags(tags: Sequence[str]) -> None:
    """Raises ConfigError."""
    for tag in tags:
        if not _NAME.fullmatch(tag):
            rule, remedy = "is no name of a tag", "write it without brackets, as think"
            raise ConfigError("scoring.scorers.tags", tag, rule=rule, remedy=remedy)
    if not tags or len({*tags}) < len(tags):
        rule, remedy = "each tag stands once, and there is one", "name the tags in their order"
        raise ConfigError("scoring.scorers.tags", [*tags], rule=rule, remedy=remedy)

"""The answers to a request as they grow, one for each sequence. Their JSON is in `forms`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pipeline.bus.chunks import cut, head
from pipeline.messages import Completion, Work
from services.inference.openai.text import Text


class Piece(NamedTuple):
    """What is new of an answer: its text, its tokens, and how it ended, if it did.

    `offset` is where its first token's own text begins, in characters.
    """

    text: str
    tokens: Completion
    finish: str | None
    first: bool = True
    offset: int = 0


class Answer:
    """One sequence: all that is known of it, its text, and how it ended, if it did."""

    def __init__(self, index: int, work: Work, text: Text) -> None:
        self.index, self.work, self._growing = index, work, text
        self.text, self.offset = "", 0
        self.tokens: Completion | None = None
        self.finish: str | None = None

    def grow(self, known: Completion) -> Piece | None:
        """What is new; None where nothing is, and after the end."""
        start, first = self._growing.tokens, self.tokens is None
        if self.finish or (known.tokens <= start and not known.finish):
            return None
        text = self._growing.feed(known.ids[4 * start :], last=known.finish is not None)
        self.finish = known.finish
        if self._growing.stopped_at is not None:
            known, self.finish = head(known, self._growing.stopped_at), "stop"
        self.text, self.tokens = self.text + text, known
        return Piece(text, cut(known, start), self.finish, first, self.offset)

    @property
    def whole(self) -> Piece:
        """All of it, once it has ended."""
        assert self.tokens is not None, "an answer that has ended has tokens"
        return Piece(self.text, self.tokens, self.finish)


class Answers:
    """All of a request, in the order of their numbers: prompt by prompt."""

    def __init__(
        self, works: Sequence[Work], decode: Callable[[bytes], str], stops: Sequence[str]
    ) -> None:
        self.works = works
        keys = [(work, member) for work in works for member in work.todo]
        self._by_key = {
            (work.prompt.group, member): Answer(index, work, Text(decode, stops))
            for index, (work, member) in enumerate(keys)
        }

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._by_key.values())

    def of(self, known: Completion) -> Answer:
        """The answer that this belongs to."""
        return self._by_key[known.group, known.member]

    @property
    def are_whole(self) -> bool:
        """Whether every one has ended."""
        return all(answer.finish for answer in self)

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt once."""
        return sum(len(work.prompt.ids) // 4 for work in self.works)

    @property
    def num_tokens(self) -> int:
        """Of all answers so far."""
        return sum(answer.tokens.tokens for answer in self if answer.tokens)

    @property
    def newest(self) -> int:
        """The newest version that sampled any of it, or -1."""
        spans = [span.version for a in self if a.tokens for span in a.tokens.spans]
        return max(spans, default=-1)

"""How answers look as JSON: the two forms of OpenAI's API, whole or event by event."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from pipeline.messages import Completion, Kept
from pipeline.model.tokens import Tokenizer
from services.inference.openai.answers import Answer, Answers, Piece
from services.inference.openai.requests import Asked, ChatAsked, TextAsked
from services.inference.openai.responses import (
    ChatChoice,
    ChatLogprobs,
    Choice,
    Message,
    Response,
    TextChoice,
    TextLogprobs,
    TokenLogprob,
    Usage,
)
from services.inference.openai.text import BROKEN


class Form(ABC):
    """Writes the response to one request."""

    prefix: ClassVar[str]
    whole: ClassVar[str]
    piece: ClassVar[str]

    def __init__(self, asked: Asked, answers: Answers, tokenizer: Tokenizer, *, run: str) -> None:
        self._asked, self._answers = asked, answers
        self._tokenizer, self._run = tokenizer, run
        self._id, self._created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())

    def response(self) -> bytes:
        """All answers, whole."""
        choices = [self._choice(answer, answer.whole, is_event=False) for answer in self._answers]
        response = self._response(self.whole, choices, self._usage)
        self._add_prompt(response)
        return msgspec.json.encode(response)

    def event(self, answer: Answer, piece: Piece) -> bytes:
        """A piece of one answer, as a stream has it."""
        choice = self._choice(answer, piece, is_event=True)
        usage = None if self._asked.stream_options.include_usage else UNSET
        response = self._response(self.piece, [choice], usage)
        if piece.first:
            self._add_prompt(response)
        return msgspec.json.encode(response)

    def last_event(self) -> bytes:
        """The usage, after the last piece."""
        return msgspec.json.encode(self._response(self.piece, [], self._usage))

    @abstractmethod
    def _choice(self, answer: Answer, piece: Piece, *, is_event: bool) -> Choice:
        """A piece of an answer, or all of it, in this form."""

    @abstractmethod
    def _add_prompt(self, response: Response) -> None:
        """Its ids, where they were asked for."""

    def _say_who(self, choice: Choice, tokens: Completion) -> None:
        """Which versions sampled it; with ids and log-probs where these were asked for."""
        choice.version = tokens.spans[-1].version if tokens.spans else None
        if self._asked.return_token_ids or len({span.version for span in tokens.spans}) > 1:
            choice.spans = tokens.spans
        if self._asked.return_token_ids:
            choice.token_ids = ints(tokens.ids)
            choice.token_logprobs = floats(tokens.logprobs)
            choice.kept_ids = UNSET if tokens.kept is None else [*_sets(tokens.kept)]

    @property
    def _usage(self) -> Usage:
        asked, done = self._answers.num_prompt_tokens, self._answers.num_tokens
        return Usage(prompt_tokens=asked, completion_tokens=done, total_tokens=asked + done)

    def _response(
        self, kind: str, choices: Sequence[Choice], usage: Usage | UnsetType | None
    ) -> Response:
        return Response(
            id=self._id,
            object=kind,
            created=self._created,
            model=self._asked.model,
            system_fingerprint=f"{self._run}@{self._answers.newest}",
            choices=choices,
            usage=usage,
        )


class TextForm(Form):
    """Of /v1/completions; `prompt_token_ids` stand in each choice, since prompts may be several."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"
    _asked: TextAsked

    def _choice(self, answer: Answer, piece: Piece, *, is_event: bool) -> TextChoice:
        choice = TextChoice(index=answer.index, text=piece.text, finish_reason=piece.finish)
        if self._asked.logprobs is not None:
            choice.logprobs = self._logprobs(answer, piece)
        if self._asked.return_token_ids and piece.first:
            choice.prompt_token_ids = ints(answer.work.prompt.ids)
        self._say_who(choice, piece.tokens)
        return choice

    def _logprobs(self, answer: Answer, piece: Piece) -> TextLogprobs:
        texts = self._tokenizer.pieces(piece.tokens.ids)
        *offsets, answer.offset = accumulate(map(len, texts), initial=piece.offset)
        values = floats(piece.tokens.logprobs)
        return TextLogprobs(tokens=texts, token_logprobs=values, text_offset=offsets)

    def _add_prompt(self, response: Response) -> None:
        """Nothing: they stand elsewhere."""


class ChatForm(Form):
    """Of /v1/chat/completions, which have one prompt."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"
    _asked: ChatAsked

    def _choice(self, answer: Answer, piece: Piece, *, is_event: bool) -> ChatChoice:
        choice = ChatChoice(index=answer.index, finish_reason=piece.finish)
        if is_event:
            role = "assistant" if piece.first else UNSET
            choice.delta = Message(role=role, content=piece.text, refusal=UNSET)
        else:
            choice.message = Message(role="assistant", content=piece.text)
        if self._asked.logprobs:
            choice.logprobs = self._logprobs(piece.tokens)
        self._say_who(choice, piece.tokens)
        return choice

    def _logprobs(self, tokens: Completion) -> ChatLogprobs:
        pairs = zip(self._tokenizer.pieces(tokens.ids), floats(tokens.logprobs), strict=True)
        return ChatLogprobs(content=[_token(text, value) for text, value in pairs])

    def _add_prompt(self, response: Response) -> None:
        if self._asked.return_token_ids:
            response.prompt_token_ids = ints(self._answers.works[0].prompt.ids)


def ints(raw: bytes) -> list[int]:
    """Of the wire's int32."""
    return array("i", raw).tolist()


def floats(raw: bytes) -> list[float]:
    """Of the wire's float32."""
    return array("f", raw).tolist()


def _token(text: str, logprob: float) -> TokenLogprob:
    whole = None if BROKEN in text else [*text.encode()]
    return TokenLogprob(token=text, logprob=logprob, bytes=whole)


def _sets(kept: Kept) -> Iterator[list[int]]:
    ids, start = ints(kept.ids), 0
    for count in ints(kept.counts):
        yield ids[start : start + count]
        start += count

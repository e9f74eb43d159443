"""The JSON of OpenAI's responses, and the fields beside it that a harness can train on.

Those are there with `return_token_ids`; where vLLM has a field for the same, it has vLLM's name.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from pipeline.messages import Span


class Usage(Struct, kw_only=True):
    """Tokens of all prompts, each once, and of all answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TextLogprobs(Struct, kw_only=True):
    """Of a completion, a place a token; `text_offset` is where its text begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: None = None
    text_offset: list[int]


class TokenLogprob(Struct, kw_only=True):
    """Of a chat's token. `bytes` is null where its text is no text without its neighbours'."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[float] = []


class ChatLogprobs(Struct, kw_only=True):
    """Of a chat, a place a token."""

    content: list[TokenLogprob]
    refusal: None = None


class Choice(Struct, kw_only=True):
    """An answer, or a piece of one. `version` is that of its last token, on any boot.

    `spans` [(version, tokens, boot), …] are there where several sampled it, and with
    `return_token_ids`, as are ids and log-probs [T]. `kept_ids` says from which ids each token
    could be drawn, where not from all; an empty list stands for all.
    """

    index: int
    finish_reason: str | None = None
    version: int | None = None
    spans: tuple[Span, ...] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_logprobs: list[float] | UnsetType = UNSET
    kept_ids: list[list[int]] | UnsetType = UNSET


class TextChoice(Choice, kw_only=True):
    """Of /v1/completions, whole or a piece."""

    text: str
    logprobs: TextLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class Message(Struct, kw_only=True):
    """What the policy says; of a piece, what is new of that."""

    role: str | UnsetType
    content: str
    refusal: UnsetType | None = None


class ChatChoice(Choice, kw_only=True):
    """Of /v1/chat/completions: `message` when whole, `delta` a piece."""

    logprobs: ChatLogprobs | None = None
    message: Message | UnsetType = UNSET
    delta: Message | UnsetType = UNSET


class Response(Struct, kw_only=True):
    """The whole, or one event. `system_fingerprint` is RUN@VERSION, the newest that answered."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[Choice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ModelCard(Struct, kw_only=True):
    """The policy; `version` is what the next token is sampled by, null before there is one."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sluice"
    root: str
    version: int | None


class Models(Struct, kw_only=True):
    """GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]

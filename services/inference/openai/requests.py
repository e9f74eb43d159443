"""What may be asked of the endpoint: the fields of OpenAI's requests, and which of them are known.

What is left out is as in the run's [sampling]. A field that would change what is sampled and cannot
be had is refused, unless it says what happens anyway; one that changes nothing is ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from pipeline.config import nearest
from pipeline.protocols import ChatMessage
from services.inference.openai.rejections import invalid

Positive = Annotated[int, Meta(ge=1)]
MOST_K = 2**31 - 1
"""Of `top_k`: more ids than this no vocabulary has, and no engine's tensors take."""
LEAST_TEMPERATURE = 1e-9
"""Above 0: what divides logits by less has infinite ones, of which nothing can be drawn."""

IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
    }
)
"""They change nothing of an answer."""

AS_IT_IS: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Known fields that can be given with these values only: what is sampled is the policy as it is,
log-probs are those of what was drawn, and the end ids are the model's."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all parts of a request share: no field is ignored unless it says so."""


class TextPart(Section, frozen=True, kw_only=True):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Section, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    content: str | list[TextPart]
    name: str = ""

    def plain(self) -> ChatMessage:
        """As templates know it: they have no names."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return ChatMessage(self.role, text)


class StreamOptions(Section, frozen=True, kw_only=True):
    """Beside `stream`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Asked(Section, frozen=True, kw_only=True):
    """What both kinds of request have in common."""

    model: str
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MOST_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, lt=1)] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] = field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else (*self.stop,)


class TextAsked(Asked, frozen=True, kw_only=True):
    """POST /v1/completions. `logprobs` 0 asks for those of the drawn tokens."""

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, Meta(ge=0)] | None = None

    @property
    def size(self) -> int:
        """How many sequences it asks for."""
        prompt = self.prompt
        one = isinstance(prompt, str) or any(isinstance(part, int) for part in prompt[:1])
        return self.n * (1 if one else len(prompt))


class ChatAsked(Asked, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    logprobs: bool = False

    @property
    def size(self) -> int:
        """How many sequences it asks for."""
        return self.n


A = TypeVar("A", bound=Asked)


def parse(body: bytes, kind: type[A]) -> A:
    """The request; raises Rejection that names the field."""
    try:
        fields = _without_nulls(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise invalid(f"The body is no JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise invalid("The body is no JSON object.")
    asked = _converted(_known(fields, kind), kind)
    if len(asked.stops) > 4 or not all(asked.stops):
        raise invalid("stop: up to 4 texts, none of them empty.", "stop")
    if 0 < (asked.temperature or 0) < LEAST_TEMPERATURE:
        raise invalid(f"temperature: 0, or {LEAST_TEMPERATURE} at least.", "temperature")
    if isinstance(asked, TextAsked) and asked.logprobs:
        raise invalid(_no_alternatives("logprobs"), "logprobs")
    return asked


def _known(fields: dict[str, Any], kind: type[A]) -> dict[str, Any]:
    """Without what changes nothing; raises Rejection for what is not known, or cannot be had."""
    known = {}
    for name, value in fields.items():
        if name in kind.__struct_fields__:
            known[name] = value
        elif name in AS_IT_IS:
            if value not in AS_IT_IS[name] and not (name == "best_of" and value == fields.get("n")):
                raise invalid(_cannot(name), name, "unsupported_value")
        elif name not in IGNORED:
            remedy = nearest(name, [*kind.__struct_fields__])
            raise invalid(f"Unrecognized request argument supplied: {name}; {remedy}", name)
    return known


def _cannot(name: str) -> str:
    if name == "top_logprobs":
        return _no_alternatives(name)
    values = " or ".join(msgspec.json.encode(v).decode() for v in AS_IT_IS[name])
    return f"{name} can only be {values} here: what is sampled is the policy as it is trained."


def _no_alternatives(name: str) -> str:
    return f"{name} can only be 0 here: the engine keeps the log-prob of the drawn token alone."


def _converted(fields: dict[str, Any], kind: type[A]) -> A:
    try:
        return msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as exc:
        found = re.search(r"\$\.(\w+)|field `(\w+)`", str(exc))
        raise invalid(str(exc), next(filter(None, found.groups())) if found else None) from exc


def _without_nulls(value: Any) -> Any:
    """Null is left out: so the API has it for every field."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value

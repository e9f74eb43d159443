"""A model as a judge, behind any endpoint that speaks as OpenAI's do; its verdict, read strictly.

What it is told is in `rubric`, how it is asked in `client`. A reply that is no verdict is a fault:
there is no guess at what the judge may have meant.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import AT, Fault, Passing
from services.scoring.scorers.remote.cache import Cache
from services.scoring.scorers.remote.client import Client, strict_object
from services.scoring.scorers.remote.rubric import messages

PATH = "/chat/completions"
MOST_CACHED = 1 << 16
FILES = (".txt", ".md")
OWN = ("model", "messages", "temperature", "max_tokens", "n", "stream")
NEWER = "max_completion_tokens"
"""What `max_tokens` is called by endpoints that refuse the older name."""

Table = dict[str, Any]


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(Struct):
    choices: list[_Choice]


class Judge:
    """A model's score of the answer by a rubric, from `low`..`high` to a reward of 0..1.

    `url` is the base URL, to which /chat/completions is added; `rubric` a text, or a file .txt or
    .md; `key_variable` names the environment variable with the key; `args` is what else stands in a
    request. The same question is asked once in a process's life, at any temperature. A verdict is
    one JSON object, {"score": 7}, with or without a "reason", and nothing around it.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        rubric: str,
        low: int = 0,
        high: int = 10,
        key_variable: str = "",
        temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0,
        max_tokens: Annotated[int, Meta(ge=1)] = 512,
        args: Table | None = None,
    ) -> None:
        """Asks nothing yet, since an endpoint may come later. Raises ConfigError."""
        self._client = Client(url, path=PATH, key_variable=key_variable)
        self._rubric, self._low, self._high = _rubric(rubric), low, high
        if low >= high:
            remedy = "lower it, or raise high"
            raise ConfigError(f"{AT}.low", low, rule=f"is not below high, {high}", remedy=remedy)
        self._request = {"model": model, "temperature": temperature, **_args(args or {})}
        if NEWER not in self._request:
            self._request["max_tokens"] = max_tokens
        self._temperature, self._cache = temperature, Cache(MOST_CACHED)
        self.version = f"{model}:{blake2b(self._rubric.encode(), digest_size=4).hexdigest()}"

    async def __call__(self, answer: Answer) -> Verdict:
        """Raises Passing for what may be gone at the next try, and else Fault."""
        shown = messages(self._rubric, answer, low=self._low, high=self._high)
        request = {**self._request, "messages": shown}
        if answer.fresh:
            return await self._ask(request)
        question = blake2b(json.dumps(request).encode(), digest_size=16).digest()
        return await self._cache(question, partial(self._ask, request))

    async def _ask(self, request: Table) -> Verdict:
        choice = _choice(await self._client.ask(request))
        try:
            return self._verdict(choice)
        except ValueError as exc:
            if self._temperature:  # another reply may be drawn; at 0 it would be this one again
                raise Passing(str(exc), reason="bad_verdict") from exc
            raise Fault("bad_verdict", str(exc)) from exc

    def _verdict(self, choice: _Choice) -> Verdict:
        """Raises ValueError."""
        if choice.finish_reason not in ("stop", None):
            raise ValueError(f"the judge's reply ended by {choice.finish_reason!r:.40}")
        found = strict_object(choice.message.content or "")
        score, reason = found.pop("score", None), found.pop("reason", "")
        if found or type(score) is not int or not isinstance(reason, str):
            raise ValueError('the verdict is not {"score": WHOLE NUMBER} alone')
        if not self._low <= score <= self._high:
            raise ValueError(f"the score is {score!r:.40}, beyond {self._low}..{self._high}")
        return Verdict(reward=(score - self._low) / (self._high - self._low))


def _choice(reply: str) -> _Choice:
    """What the model said. Raises Passing: the reply was cut, or is from what stands before it."""
    try:
        choices = msgspec.json.decode(reply, type=_Completion).choices
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        detail = f"{reply!r:.80} is no chat completion ({exc})"
        raise Passing(detail, reason="bad_verdict") from exc
    if len(choices) != 1:
        raise Passing(f"the completion has {len(choices)} choices", reason="bad_verdict")
    return choices[0]


def _args(args: Table) -> Table:
    """Raises ConfigError for what the scorer says itself."""
    for name in OWN:
        if name in args:
            rule, remedy = "is said by the scorer itself", "leave it out, or use its own option"
            raise ConfigError(f"{AT}.args.{name}", args[name], rule=rule, remedy=remedy)
    return args


def _rubric(rubric: str) -> str:
    """The text, of the file where it is one's name; raises ConfigError."""
    at, text = f"{AT}.rubric", rubric
    if rubric.endswith(FILES):
        try:
            text = Path(rubric).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as exc:
            remedy = "name a file of UTF-8 text, or write the rubric itself"
            raise ConfigError(at, rubric, rule=f"cannot be read ({exc})", remedy=remedy) from exc
    if len(text.split()) < 2:
        rule = "is neither a rubric in words nor a file .txt or .md"
        raise ConfigError(at, rubric, rule=rule, remedy="write what makes an answer good")
    return text.strip()

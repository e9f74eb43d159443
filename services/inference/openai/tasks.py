"""From a request to work for an engine: token ids, sampling, and noise of its own."""

from __future__ import annotations

import secrets
import threading
from array import array
from collections.abc import Sequence

from msgspec.structs import replace

from pipeline.errors import Unusable
from pipeline.messages import Prompt, Sampling, Work
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Text
from services.inference.openai.rejections import invalid
from services.inference.openai.requests import Asked, ChatAsked, TextAsked

INT32 = 2**31


class Tasks:
    """What is asked, as groups that belong to no run's stream."""

    def __init__(
        self,
        texts: Tokenizer,
        chats: Tokenizer,
        *,
        sampling: Sampling,
        members: int,
    ) -> None:
        """`texts` writes no template; `chats` writes the run's.

        `sampling` is what a request leaves out. No answer may be longer than it says: engines hold
        room for the longest, and a flip that drains waits for it. `members` is the size of the
        run's groups: an engine counts its room in groups of the size seen last, so a guest's has
        to say the same.
        """
        self._texts, self._chats = texts, chats
        self._sampling, self._members = sampling, members
        self._encoding = threading.Lock()  # a fast tokenizer is not safe to share

    def works(self, asked: TextAsked | ChatAsked) -> list[Work]:
        """A group for each prompt, of n members. Raises Rejection."""
        sampling = self._sampled(asked)
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        name = f"guest-{secrets.token_hex(8)}"
        return [
            Work(
                prompt=Prompt(
                    group=f"{name}/{place}",
                    seq=-1,
                    ids=ids,
                    members=self._members,
                    sampling=sampling,
                    seed=seed,
                    noise=f"guest/{place}",
                ),
                todo=tuple(range(asked.n)),
            )
            for place, ids in enumerate(self._prompts(asked))
        ]

    def _prompts(self, asked: TextAsked | ChatAsked) -> list[bytes]:
        if isinstance(asked, ChatAsked):
            chat = tuple(message.plain() for message in asked.messages)
            return [self._encoded(self._chats, chat, "messages")]
        prompt = asked.prompt
        if isinstance(prompt, str):
            return [self._encoded(self._texts, prompt, "prompt")]
        if prompt and all(isinstance(one, int) for one in prompt):
            return [_ids(prompt)]
        if not prompt or any(isinstance(one, int) for one in prompt):
            raise invalid("prompt: a text, token ids, or a list of either.", "prompt")
        return [
            self._encoded(self._texts, one, "prompt") if isinstance(one, str) else _ids(one)
            for one in prompt
            if not isinstance(one, int)
        ]

    def _encoded(self, tokenizer: Tokenizer, prompt: Text, at: str) -> bytes:
        try:
            with self._encoding:
                return tokenizer.encode(prompt, at=at)
        except Unusable as exc:
            raise invalid(str(exc), at) from exc

    def _sampled(self, asked: Asked) -> Sampling:
        tokens = asked.max_completion_tokens or asked.max_tokens
        if tokens and tokens > (most := self._sampling.max_tokens):
            message = f"max_tokens: {most} at most, as the run's own (sampling.max_tokens)."
            raise invalid(message, "max_tokens")
        given = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": None if asked.top_k is None else max(0, asked.top_k),
            "min_p": asked.min_p,
            "max_tokens": tokens,
        }
        return replace(self._sampling, **{k: v for k, v in given.items() if v is not None})


def _ids(prompt: Sequence[object]) -> bytes:
    ids = [one for one in prompt if isinstance(one, int) and 0 <= one < INT32]
    if not prompt or len(ids) < len(prompt):
        raise invalid("prompt: token ids are numbers from 0 on, one at least.", "prompt")
    return array("i", ids).tobytes()

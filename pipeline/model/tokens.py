"""Prompts to token ids, once, when they are admitted; ids to text, for scorers only.

Nothing that was decoded is ever encoded again: what the engine sampled is what the trainer reads.
How a chat becomes a text is in `chat`.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import transformers
from transformers.utils.hub import cached_file

from pipeline.errors import ConfigError, Unusable
from pipeline.model.chat import Chat
from pipeline.model.source import WHERE, check_folder, context_of, refuse
from pipeline.protocols import ChatMessage, Text

_FILES = ("generation_config.json", "config.json")


class Tokenizer:
    """A model's tokenizer; ids are int32 little-endian bytes, as on the wire."""

    def __init__(self, path: str, *, template: str = "") -> None:
        """From a folder or a Hugging Face name; `template` is a jinja file, "own", or empty.

        Raises ConfigError where either cannot be had.
        """
        self._tokenizer = _load(path)
        self._chat = Chat(self._tokenizer, template)

    def check(self, prompt: Text) -> None:
        """Raises Unusable where the prompt is a chat and there is no template for any."""
        self._chat.check(prompt)

    def encode(self, prompt: Text, *, at: str = "data") -> bytes:
        """The ids of a prompt; raises Unusable for one that has none, which stands `at`.

        What the tokenizer puts in front of a text stands in front of a chat too, and once, whether
        or not text or template begin with it; what it puts behind is left out, since the answer
        goes there.
        """
        text = self._chat.written(prompt, at)
        encoded = self._encoded(text, "prompt", at, return_special_tokens_mask=True)
        front, ids = _without_added(encoded["input_ids"], encoded["special_tokens_mask"])
        return array("i", ids if ids[: len(front)] == front else front + ids).tobytes()

    def encode_answer(self, text: str, *, at: str = "data") -> bytes:
        """The ids of an answer as a policy would have written it: the end token behind, no other
        special token. Raises Unusable for one that has none, which stands `at`.
        """
        ids = self._encoded(text, "answer", at, add_special_tokens=False)["input_ids"]
        return array("i", [*ids, *sorted(_ids(self._tokenizer.eos_token_id))[:1]]).tobytes()

    def encode_exchange(self, chat: tuple[ChatMessage, ...], answer: str) -> list[int]:
        """The ids of a chat with its answer as a turn of it; without a template for chats, those of
        one text behind the other. Raises Unusable, or whatever a template does that refuses it.
        """
        text = self._chat.answered(chat, answer)
        plain = not self._chat.is_there  # a template for chats writes special tokens by itself
        return [*self._encoded(text, "exchange", "", add_special_tokens=plain)["input_ids"]]

    def parted(self, ids: bytes) -> tuple[ChatMessage, ...]:
        """The chat that a prompt was before its template wrote it out; empty where it was none."""
        text = self._tokenizer.decode(array("i", ids).tolist(), clean_up_tokenization_spaces=False)
        return self._chat.parted(str(text))

    def _encoded(self, text: str, what: str, at: str, **options: bool) -> Any:
        try:
            return self._tokenizer(text, **options)
        except Exception as exc:  # tokenizers raises Exception itself; one text, told by what it is
            raise Unusable(
                at,
                text,
                reason="not_encoded",
                rule=f"the tokenizer has no ids for this {what} ({exc})",
                remedy=f"correct the {what}, or choose the tokenizer that it was written for",
            ) from exc

    def describe(self) -> str:
        """How many ids there are and what they mean; two that are described alike are alike."""
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        ends = sorted(_ids(self._tokenizer.eos_token_id))
        digest = hashlib.blake2b(repr((vocabulary, ends)).encode(), digest_size=6).hexdigest()
        return f"of {len(vocabulary)} ids ({digest})"

    def decode(self, ids: bytes) -> str:
        """The text of a completion, without special tokens, characters as they are."""
        return str(
            self._tokenizer.decode(
                array("i", ids).tolist(),
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
        )

    def pieces(self, ids: bytes) -> list[str]:
        """Each token's own text, special ones too; one may be no text without its neighbours."""
        return [
            str(self._tokenizer.decode([one], clean_up_tokenization_spaces=False))
            for one in array("i", ids)
        ]

    def save(self, folder: str) -> None:
        """Beside a model's weights, so that the folder can be loaded by itself."""
        self._tokenizer.save_pretrained(folder)


def context_length(path: str) -> int | None:
    """Tokens that the model's context holds, prompt and answer together; None if it is not told."""
    return context_of(_read(path, "config.json"))


def end_ids(path: str) -> frozenset[int]:
    """Every id that ends a completion: those of generation_config, config and tokenizer.

    One of them alone is not enough: chat models end turns with ids that only one place names.
    Raises ConfigError where there is none.
    """
    found = set(_ids(_load(path).eos_token_id))
    for name in _FILES:
        found |= _ids(_read(path, name).get("eos_token_id"))
    if not found:
        raise ConfigError(
            WHERE,
            path,
            rule="neither its tokenizer nor its configurations name an end token",
            remedy="set eos_token_id in its generation_config.json",
        )
    return frozenset(found)


def _without_added(ids: list[int], added: list[int]) -> tuple[list[int], list[int]]:
    """What was added in front, and the ids between that and what was added behind."""
    start, stop = 0, len(ids)
    while start < stop and added[start]:
        start += 1
    while stop > start and added[stop - 1]:
        stop -= 1
    return ids[:start], ids[start:stop]


def _load(path: str) -> Any:
    check_folder(path)
    try:
        return _from_file(path) or transformers.AutoTokenizer.from_pretrained(path)
    except Exception as exc:  # tokenizers raises Exception itself for a damaged tokenizer.json
        refuse(path, "no tokenizer could be loaded from it", exc)


def _from_file(path: str) -> Any:
    """From tokenizer.json alone, which loads no torch; None where there is none."""
    try:
        return transformers.PreTrainedTokenizerFast.from_pretrained(path)
    except (OSError, ValueError):
        return None


def _read(path: str, name: str) -> dict[str, Any]:
    """A file of JSON of the model's, or nothing; transformers' own way to it would load torch."""
    try:
        content = json.loads(Path(str(cached_file(path, name))).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)

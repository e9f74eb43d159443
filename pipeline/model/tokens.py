"""Text to token ids, once, for prompts; ids to text, for scorers only.

Nothing that was decoded is ever encoded again: what the engine sampled is what the trainer reads.
"""

from __future__ import annotations

from array import array
from typing import Any

import transformers

from pipeline.errors import ConfigError
from pipeline.model.source import WHERE, check_folder, refuse

_FILES = ("generation_config.json", "config.json")


class Tokenizer:
    """A model's tokenizer; ids are int32 little-endian bytes, as on the wire."""

    def __init__(self, path: str) -> None:
        """From a folder or a Hugging Face name; raises ConfigError where it cannot be loaded."""
        self._tokenizer = _load(path)

    def encode(self, text: str) -> bytes:
        """The ids of a prompt, with the special tokens that the model expects, BOS never twice.

        Raises ConfigError for text that the tokenizer has no ids for.
        """
        bos = self._tokenizer.bos_token
        special = not (bos and text.startswith(bos))
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as exc:  # tokenizers raises Exception itself; one prompt, told by its name
            raise ConfigError(
                "data",
                text,
                rule=f"the tokenizer has no ids for this prompt ({exc})",
                remedy="correct the prompt, or choose the tokenizer that it was written for",
            ) from exc
        return array("i", ids).tobytes()

    def decode(self, ids: bytes) -> str:
        """The text of a completion, without special tokens, characters as they are."""
        return str(
            self._tokenizer.decode(
                array("i", ids).tolist(),
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
        )

    def save(self, folder: str) -> None:
        """Beside a model's weights, so that the folder can be loaded by itself."""
        self._tokenizer.save_pretrained(folder)


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
    try:
        content, _ = transformers.PreTrainedConfig.get_config_dict(path, _configuration_file=name)
    except OSError:
        return {}
    return dict(content)


def _ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)

"""What this machine's copy of the model is like, in words that all processes of a run compare.

RUN.toml names a folder, and each machine has its own. Weights of one model do not go into another,
and ids of one tokenizer mean nothing to another. Read from the files of JSON alone, so that whoever
needs no model loads no library for it; a name at Hugging Face is looked up in its cache. What a
machine does not know it does not tell, and nobody differs from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.model.source import context_of, read_json
from pipeline.plugins import options_of
from pipeline.run import Run

_SHAPING = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
"""What the shapes of most decoders' parameters follow from, as config.json has it. Each is compared
by itself, since some releases leave out what is as usual."""


def likeness(run: Run) -> dict[str, str]:
    """Keys of the run's identity, of what is here: who needs no model may have a part of it."""
    told = {}
    if tokenizer := _read(run.model.path, "tokenizer.json"):
        told["model.tokenizer"] = _vocabulary(tokenizer)
    config = _read(run.model.path, "config.json")
    text = config.get("text_config") or config
    told |= {f"model.{key}": str(text[key]) for key in _SHAPING if text.get(key)}
    return told | _length("model.context", context_of(config))


def room(run: Run) -> dict[str, str]:
    """What an engine adds: the longest that prompt and answer may be in it together."""
    told = options_of(run.inference.engine).get("max_length")
    own = context_of(_read(run.model.path, "config.json"))
    return _length("inference.engine.max_length", told or own)


def _length(key: str, tokens: int | None) -> dict[str, str]:
    return {key: f"{tokens} tokens"} if tokens else {}


def _vocabulary(tokenizer: Mapping[str, Any]) -> str:
    """How many tokens there are, and a digest of their ids; some releases list some twice."""
    known = (tokenizer.get("model") or {}).get("vocab") or {}
    if not isinstance(known, dict):  # in the order of their ids, each with its score
        known = {token: number for number, (token, _) in enumerate(known)}
    added = {one["content"]: one["id"] for one in tokenizer.get("added_tokens") or []}
    told = json.dumps(known | added, sort_keys=True).encode()
    return f"{len(known | added)} tokens ({hashlib.blake2b(told, digest_size=6).hexdigest()})"


def _read(path: str, name: str) -> dict[str, Any]:
    if Path(path).is_dir():
        return read_json(Path(path) / name)
    try:
        cached = import_module("huggingface_hub").try_to_load_from_cache(path, name)
    except (ImportError, ValueError):  # whoever loads it will say what is wrong with it
        return {}
    return read_json(Path(cached)) if isinstance(cached, str) else {}

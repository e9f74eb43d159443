"""What this machine's copy of the model is like, in words that all processes of a run compare.

RUN.toml names a folder, and each machine has its own. Weights of one model do not go into another,
and ids of one tokenizer mean nothing to another. Read from the files of JSON alone, so that whoever
needs no model loads no library for it; a name at Hugging Face is looked up in its cache.
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

_SIZES = {
    "num_hidden_layers": "layers",
    "hidden_size": "wide",
    "intermediate_size": "within",
    "num_attention_heads": "heads",
    "num_key_value_heads": "for keys",
    "vocab_size": "ids",
}
"""What the shapes of most decoders' parameters follow from, by its key in config.json."""


def likeness(run: Run) -> dict[str, str]:
    """Keys of the run's identity, of what is here: who needs no model may have a part of it."""
    told = {}
    if tokenizer := _read(run.model.path, "tokenizer.json"):
        told["model.tokenizer"] = _vocabulary(tokenizer)
    if config := _read(run.model.path, "config.json"):
        told["model.architecture"] = _architecture(config)
        told["model.context"] = _tokens(context_of(config))
    return told


def room(run: Run) -> dict[str, str]:
    """What an engine adds: the longest that prompt and answer may be in it together."""
    told = options_of(run.inference.engine).get("max_length")
    own = context_of(_read(run.model.path, "config.json"))
    return {"inference.engine.max_length": _tokens(told or own)}


def _tokens(number: int | None) -> str:
    return f"{number or 'unknown'} tokens"


def _vocabulary(tokenizer: Mapping[str, Any]) -> str:
    """How many ids there are, and a digest of what they mean."""
    known = (tokenizer.get("model") or {}).get("vocab") or {}
    added = [[one.get("id"), one.get("content")] for one in tokenizer.get("added_tokens") or []]
    told = json.dumps([known, sorted(added, key=str)], sort_keys=True).encode()
    return f"{len(known)} tokens ({hashlib.blake2b(told, digest_size=6).hexdigest()})"


def _architecture(config: Mapping[str, Any]) -> str:
    """Its kind and its sizes: what any release writes in the same words."""
    text = config.get("text_config") or config
    sizes = [f"{text[key]} {what}" for key, what in _SIZES.items() if text.get(key)]
    return f"{text.get('model_type', 'unknown')} of {', '.join(sizes)}"


def _read(path: str, name: str) -> dict[str, Any]:
    if Path(path).is_dir():
        return read_json(Path(path) / name)
    try:
        cached = import_module("transformers.utils.hub").cached_file(path, name)
    except (OSError, ValueError):  # whoever loads it will say what is wrong with it
        return {}
    return read_json(Path(str(cached)))

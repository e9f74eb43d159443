"""Where a model comes from: a folder or a Hugging Face name, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pipeline.errors import ConfigError

WHERE = "model.path"
_CONTEXT = ("max_position_embeddings", "n_positions")
REMEDY = "give a folder made by save_pretrained, or a Hugging Face name"


def check_folder(path: str, *, at: str = WHERE) -> None:
    """Raises ConfigError for a path to nothing, before anyone takes it for a Hugging Face name.

    Those have one slash at most, OWNER/NAME. `at` is the key that says so.
    """
    is_name = path and not path.startswith(("/", ".", "~")) and path.count("/") <= 1
    if not is_name and not Path(path).is_dir():
        raise ConfigError(at, path, rule="there is no such folder", remedy=REMEDY)


def check_model(path: str, *, at: str = WHERE) -> None:
    """Raises ConfigError for a folder that can hold no model, without loading anything."""
    check_folder(path, at=at)
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ConfigError(at, path, rule="the folder has no config.json", remedy=REMEDY)


def context_of(config: Mapping[str, Any]) -> int | None:
    """Tokens that the context holds of a model with this config.json; None if it is not told."""
    for part in (config.get("text_config") or {}, config):
        for key in _CONTEXT:
            if isinstance(part.get(key), int):
                return int(part[key])
    return None


def context_in(path: str) -> int | None:
    """That of the model in a folder, where its configuration can be read."""
    return context_of(read_json(Path(path) / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """A file of the model's; empty where it cannot be read, which whoever loads it will say."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def refuse(path: str, what: str, exc: Exception, *, at: str = WHERE) -> NoReturn:
    """One ConfigError that keeps the first line of the library's own reason."""
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    raise ConfigError(at, path, rule=f"{what} ({reason})", remedy=REMEDY) from exc

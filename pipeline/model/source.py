"""Where a model comes from: a folder or a Hugging Face name, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from pipeline.errors import ConfigError

WHERE = "model.path"
REMEDY = "give a folder made by save_pretrained, or a Hugging Face name"


def check_folder(path: str) -> None:
    """Raises ConfigError for a path to nothing, before anyone takes it for a Hugging Face name.

    Those have one slash at most, OWNER/NAME.
    """
    is_name = path and not path.startswith(("/", ".", "~")) and path.count("/") <= 1
    if not is_name and not Path(path).is_dir():
        raise ConfigError(WHERE, path, rule="there is no such folder", remedy=REMEDY)


def check_model(path: str) -> None:
    """Raises ConfigError for a folder that can hold no model, without loading anything."""
    check_folder(path)
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ConfigError(WHERE, path, rule="the folder has no config.json", remedy=REMEDY)


def refuse(path: str, what: str, exc: Exception) -> NoReturn:
    """One ConfigError that keeps the first line of the library's own reason."""
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    raise ConfigError(WHERE, path, rule=f"{what} ({reason})", remedy=REMEDY) from exc

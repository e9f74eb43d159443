"""Where a model comes from: a folder or a Hugging Face name, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from pipeline.errors import ConfigError

WHERE = "model.path"


def check_folder(path: str) -> None:
    """Raises ConfigError for a path to nothing, before anyone takes it for a Hugging Face name.

    Those have one slash at most, OWNER/NAME.
    """
    if (path.startswith(("/", ".", "~")) or path.count("/") > 1) and not Path(path).is_dir():
        raise ConfigError(
            WHERE,
            path,
            rule="there is no such folder",
            remedy="give a folder or a Hugging Face name",
        )


def refuse(path: str, what: str, exc: Exception) -> NoReturn:
    """One ConfigError that keeps the first line of the library's own reason."""
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    raise ConfigError(
        WHERE,
        path,
        rule=f"{what} ({reason})",
        remedy="give a folder made by save_pretrained, or a Hugging Face name",
    ) from exc

"""The folder of a run: one of its own for each, so that two runs never mix."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from msgspec.structs import replace

from pipeline import config
from pipeline.errors import ConfigError
from pipeline.run import RUNS, Run

NAME_LIMIT = 64


def claim(run: Run, runs: Path = RUNS) -> tuple[Path, Run]:
    """A new folder for the run, NAME or NAME-2 and so on, and the run under that name.

    `mkdir` decides, so two that start at once get two. The resolved run.toml is in it, without the
    server's URL, which may hold a password: processes are told it by their environment.
    """
    for number in itertools.count(1):
        suffix = f"-{number}" if number > 1 else ""
        folder = runs.resolve() / (run.name[: NAME_LIMIT - len(suffix)] + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as exc:
            remedy = "start where a folder can be made"
            raise ConfigError(str(folder), None, rule=str(exc), remedy=remedy) from exc
        bus = replace(run.bus, url="")
        named = replace(run, name=folder.name, bus=bus)
        (folder / "logs").mkdir()
        (folder / "run.toml").write_text(config.dump(named), encoding="utf-8")
        return folder, named
    raise AssertionError("count never ends")


def release(folder: Path) -> None:
    """Gives back the name of a run that never began."""
    shutil.rmtree(folder, ignore_errors=True)

"""The folder of a run: one of its own for each, so that two runs never mix.

A run whose folder says that it ended is over, and its name gets a number; one that was cut short
goes on in its folder.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pipeline import config, disk
from pipeline.errors import ConfigError
from pipeline.run import ENDED, RUNS, Run

NAME_LIMIT = 64
ASKED, LOGS, RUN_TOML = "asked", "logs", "run.toml"


class Claimed(NamedTuple):
    """A run's folder, locked while `lock` is open, and the run under the folder's name."""

    folder: Path
    run: Run
    resumed: bool
    lock: int

    def release(self) -> None:
        """Give back the name of a run that never began; one that did keeps its folder."""
        os.close(self.lock)
        if not self.resumed:
            shutil.rmtree(self.folder, ignore_errors=True)


def claim(run: Run, runs: Path = RUNS) -> Claimed:
    """The folder of the run: NAME, or NAME-2 and so on where the former ones have ended.

    The resolved run.toml is in it, without the server's URL, which may hold a password: processes
    are told it by their environment. Raises ConfigError where the run is alive, or goes on under
    keys that may not change.
    """
    for number in itertools.count(1):
        suffix = f"-{number}" if number > 1 else ""
        folder = runs.resolve() / (run.name[: NAME_LIMIT - len(suffix)] + suffix)
        if not (folder / ENDED).exists() and _is_of(folder, run.name, number):
            named = replace(run, name=folder.name, bus=replace(run.bus, url=""))
            return _begin(named, folder, asked=run.name)
    raise AssertionError("count never ends")


def mark_ended(folder: Path) -> None:
    """The run is over, and nothing will go on here."""
    (folder / ENDED).touch()


def _is_of(folder: Path, asked: str, number: int) -> bool:
    """Whether a numbered folder is free, or of a run that was asked for by this name."""
    if number == 1 or not folder.exists():
        return True
    note = folder / ASKED
    return note.exists() and note.read_text(encoding="utf-8") == asked


def _begin(run: Run, folder: Path, asked: str) -> Claimed:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        remedy = "start where a folder can be made"
        raise ConfigError(str(folder), None, rule=str(exc), remedy=remedy) from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Claimed(folder, run, _prepared(run, folder, asked), lock)
    except BlockingIOError:
        os.close(lock)
        remedy = "wait for its end, stop it, or choose another name"
        raise ConfigError("name", run.name, rule="this run is alive", remedy=remedy) from None
    except BaseException:
        os.close(lock)
        raise


def _prepared(run: Run, folder: Path, asked: str) -> bool:
    """Whether the run goes on in its folder, which is as it needs it."""
    try:
        resumed = _has_begun(folder)
        if resumed:
            _check_equal(run, config.load(folder / RUN_TOML))
        else:
            _clear(folder)
        (folder / LOGS).mkdir(exist_ok=True)
        (folder / ASKED).write_text(asked, encoding="utf-8")
        disk.write(folder / RUN_TOML, config.dump(run).encode())
    except OSError as exc:
        rule = f"cannot be written ({exc.strerror})"
        remedy = "make room, or start where you may write"
        raise ConfigError(str(folder), None, rule=rule, remedy=remedy) from exc
    return resumed


def _has_begun(folder: Path) -> bool:
    """Whether a trainer has led the run: then there may be steps to go on from."""
    return any(any((folder / kind).glob("*")) for kind in ("epochs", "steps", "checkpoints"))


def _check_equal(run: Run, former: Run) -> None:
    for key, value in run.identity.items():
        if (stored := former.identity[key]) != value:
            rule = f"run {run.name} is not over, and was made with {stored!r}"
            remedy = "restore that value to go on with it, or choose another run name"
            raise ConfigError(key, value, rule=rule, remedy=remedy)


def _clear(folder: Path) -> None:
    """What a run left that never had a trainer, but for its logs; nothing that is not a run's."""
    left = [path for path in folder.iterdir() if path.name != LOGS]
    if left and not (folder / RUN_TOML).exists():
        remedy = "choose another run name, or move it away"
        raise ConfigError(str(folder), None, rule="is not the folder of a run", remedy=remedy)
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()

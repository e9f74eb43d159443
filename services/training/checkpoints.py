"""Checkpoints: where a trainer begins that follows another, and replays the records since. † torch

What is in one is the back end's; the folder's name and mark are made here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from safetensors import SafetensorError

from pipeline import disk
from pipeline.errors import ConfigError, SluiceError

KEPT = 2
FOLDER, MARK = "checkpoints", "checkpoint.json"
_NAME = re.compile(r"\d{8,}\.e\d+")


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Where the trainer stood; `fingerprint` is that of its parameters as it held them.

    `backend`, `ranks` and `threads` are what it stepped with: others sum in another order, to other
    bits.
    """

    batch: int
    step: int
    version: int
    fingerprint: str
    backend: str
    ranks: int
    threads: int


class Checkpoints:
    """`checkpoints/` of a run, the newest two of them: `model/`, `state/` and `checkpoint.json`."""

    def __init__(self, folder: Path, save: Callable[[Path], None]) -> None:
        """`save` fills an empty folder."""
        self.folder = folder / FOLDER
        self._save = save

    def write(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        """The checkpoint, whole and synced; older ones go. Raises SluiceError."""
        path = self.folder / f"{checkpoint.batch:08d}.e{epoch}"
        try:
            if path.exists():  # a trainer that has made no step since
                return
            with disk.new_folder(path) as partial:
                self._save(partial)
                (partial / MARK).write_bytes(msgspec.json.encode(checkpoint))
        except (OSError, SafetensorError) as exc:
            raise SluiceError(f"{path} cannot be written ({exc})") from exc
        for old in _whole(self.folder)[:-KEPT]:
            shutil.rmtree(old)

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """The last one that is whole: its folder, and where the trainer stood."""
        whole = _whole(self.folder)
        return (whole[-1], _read(whole[-1])) if whole else None


def found(run_folder: Path) -> list[Checkpoint]:
    """The marks of all that are whole, the oldest first."""
    return [_read(path) for path in _whole(run_folder / FOLDER)]


def _whole(folder: Path) -> list[Path]:
    """Those that were written to their end."""
    named = [path for path in folder.glob("*") if _NAME.fullmatch(path.name)]
    return sorted((path for path in named if (path / MARK).exists()), key=_batch_and_epoch)


def _batch_and_epoch(path: Path) -> tuple[int, int]:
    batch, _, epoch = path.name.partition(".e")
    return int(batch), int(epoch)


def _read(path: Path) -> Checkpoint:
    try:
        return msgspec.json.decode((path / MARK).read_bytes(), type=Checkpoint)
    except msgspec.MsgspecError as exc:
        rule = f"is no mark of a checkpoint ({exc})"
        remedy = "remove that folder, to go on from the one before"
        raise ConfigError(str(path / MARK), None, rule=rule, remedy=remedy) from exc

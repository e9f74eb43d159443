"""Checkpoints: where a trainer begins that follows another, and replays the records since. † torch

What is in one is the back end's, and of others who remember something; the folder's name and mark
are made here. It is copied while training waits, and written while training goes on.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from safetensors import SafetensorError

from pipeline import disk
from pipeline.digests import MARK, digests
from pipeline.errors import ConfigError, SluiceError
from pipeline.protocols import Snapshot
from services.training.metrics import COPIED, WAITED, WRITTEN
from services.training.remembered import Memory, Remembers, recall, write

Told = Callable[[str, float], None]
"""Hears what a part of a checkpoint has taken, in seconds: one of `metrics.PARTS`."""

log = logging.getLogger(__name__)

FOLDER = "checkpoints"
_NAME = re.compile(r"\d{8,}\.e\d+")


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Where the trainer stood; `fingerprint` is that of its float32 parameters.

    `backend`, `ranks` and `threads` are what it stepped with: others sum in another order, to other
    bits. `files` has a digest of each file.
    """

    batch: int
    step: int
    version: int
    backend: str
    ranks: int
    threads: int
    fingerprint: str = ""
    files: dict[str, str] = {}


class Checkpoints:
    """`checkpoints/` of a run, the newest and the best: `model/`, `state/`, `checkpoint.json`.

    One is written at a time; the next waits for it, so that two copies never stand in memory.
    """

    def __init__(
        self,
        folder: Path,
        take: Callable[[], Snapshot],
        *,
        kept: int = 2,
        others: Mapping[str, Remembers] | None = None,
        told: Told = lambda part, seconds: None,
        scores: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        """`take` copies the model and its optimizer; `others` are what else a step depends on.

        `told` is called by the thread that writes, too. The newest `kept` are kept, the one whose
        version has the best of the `scores`, and those of `awaited`, whose score is to come.
        """
        self.folder, self._take, self._kept = folder / FOLDER, take, kept
        self._others, self._told = dict(others or {}), told
        self._writing: threading.Thread | None = None
        self._error: Exception | None = None
        self._scores = scores
        self.awaited: frozenset[int] = frozenset()

    def write(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        """Copy what there is; it is written, whole and synced, by a thread, and older ones go then.

        Raises SluiceError for the one before.
        """
        began = time.monotonic()
        self.flush()
        path = self.folder / f"{checkpoint.batch:08d}.e{epoch}"
        if path.exists():  # a trainer that has made no step since
            return
        began = self._spent(WAITED, path, began)
        taken, others = self._take(), {name: one.memory() for name, one in self._others.items()}
        self._spent(COPIED, path, began)
        self._writing = threading.Thread(
            target=self._write, args=(path, checkpoint, taken, others), name="checkpoint"
        )
        self._writing.daemon = True  # a trainer that fails does not wait for it
        self._writing.start()

    def flush(self) -> None:
        """Wait for what is being written. Raises SluiceError where it could not be."""
        if self._writing is not None:
            self._writing.join()
        self.check()

    def check(self) -> None:
        """Raises SluiceError where one could not be written since the last call."""
        error, self._error = self._error, None
        if isinstance(error, OSError | SafetensorError):
            raise SluiceError(f"a checkpoint cannot be written ({error})") from error
        if error is not None:
            raise error

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """The last one that is whole: its folder, and where the trainer stood."""
        whole = _whole(self.folder)
        return (whole[-1], _read(whole[-1])) if whole else None

    def recall(self, path: Path) -> None:
        """What else a step depends on, as it was. Raises SluiceError."""
        recall(path, self._others)

    def _write(
        self, path: Path, checkpoint: Checkpoint, taken: Snapshot, others: Mapping[str, Memory]
    ) -> None:
        began = time.monotonic()
        try:
            self._put(path, checkpoint, taken, others)
            self._remove_old()
        except Exception as exc:  # raised again in the caller's thread
            log.error("%s cannot be written: %s", path, exc)
            self._error = exc
            return
        self._spent(WRITTEN, path, began)

    def _spent(self, part: str, path: Path, began: float) -> float:
        """Says how long it took; the time now."""
        now = time.monotonic()
        log.info("checkpoint=%s %s_seconds=%.3f", path.name, part, now - began)
        self._told(part, now - began)
        return now

    def _put(
        self, path: Path, checkpoint: Checkpoint, taken: Snapshot, others: Mapping[str, Memory]
    ) -> None:
        with disk.new_folder(path) as partial:
            taken.write(str(partial))
            write(partial, others)
            whole = replace(checkpoint, fingerprint=taken.fingerprint(), files=digests(partial))
            (partial / MARK).write_bytes(msgspec.json.encode(whole))

    def _remove_old(self) -> None:
        """All but the newest, the best, and those whose score is to come."""
        whole = _whole(self.folder)
        versions = {path: _read(path).version for path in whole}
        scores = self._scores()
        scored = [path for path in whole if versions[path] in scores]
        best = max(scored, key=lambda path: scores[versions[path]], default=None)
        for path in whole[: -self._kept]:
            if path != best and versions[path] not in self.awaited:
                shutil.rmtree(path)


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
        rule, remedy = f"is no mark ({exc})", "remove that folder, to go on from the one before"
        raise ConfigError(str(path / MARK), None, rule=rule, remedy=remedy) from exc

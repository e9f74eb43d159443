"""Weights through a folder that the trainer and all engines share, NFS for instance. † torch

How versions are written and read is `store`'s; what those that died left is removed here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from pipeline.errors import ConfigError
from pipeline.messages import Manifest
from pipeline.weights.store import KEPT_VERSIONS, Store

log = logging.getLogger(__name__)

_NAME = re.compile(r"\.?v(\d+)\.e(\d+)\.(safetensors|.*\.partial)")


class FilesTransport(Store):
    """Versions of a run lie in `FOLDER/RUN`, as `v12.e3.safetensors`: version 12 by epoch 3.

    The newest two stay, also when the trainer has ended, for engines that join. Whether another
    sender lives cannot be known across machines: what lower epochs left goes, except the newest
    two, and a sender of a lower epoch that does live has been fenced.
    """

    def __init__(self, *, folder: str, run: str) -> None:
        """Raises ConfigError where there is no such folder: it may not be mounted."""
        super().__init__(Path(folder), run)
        if not Path(folder).is_dir():
            rule = f"there is no such folder on {_host()}"
            remedy = "mount it, or name one that all machines of the run share"
            raise ConfigError("weights.folder", folder, rule=rule, remedy=remedy)
        self._folder = self._root / quote(run, safe="")

    def _home(self, epoch: int) -> Path:
        self._folder.mkdir(exist_ok=True)
        self._sweep(epoch)  # before a write: it may be what the disk is full of
        return self._folder

    def _find(self, manifest: Manifest) -> Path:
        return self._folder / Path(manifest.location).name  # it may be mounted elsewhere there

    def _doubt(self, path: Path) -> str:
        if path.exists():
            return ""
        here = ", ".join(left.path.name for left in _lying(self._folder)) or "nothing of the run"
        return (
            f"; {_host()} sees {here} in {self._folder}: unless it was dropped since, "
            "mount the trainer's weights.folder here, or name one that both share"
        )

    def _sweep(self, epoch: int) -> None:
        lying = sorted(_lying(self._folder))
        whole = [left for left in lying if left.path.suffix != ".partial"]
        newest = whole[-KEPT_VERSIONS:]
        for left in lying:
            if left.epoch < epoch and left not in newest:
                log.info("removing %s, left by epoch %d", left.path, left.epoch)
                _remove(left.path)


class _Left(NamedTuple):
    epoch: int
    version: int
    path: Path


def _lying(folder: Path) -> Iterator[_Left]:
    """Whole versions and partial ones; nothing else in the folder is ours to judge."""
    with suppress(OSError):
        for path in folder.iterdir():
            if found := _NAME.fullmatch(path.name):
                yield _Left(int(found[2]), int(found[1]), path)


def _remove(path: Path) -> None:
    if path.suffix == ".partial":
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # another user's, or gone already: the version that is sent stands
            path.unlink()


def _host() -> str:
    return os.uname().nodename

"""Weights through a folder that the trainer and all engines share, NFS for instance. † torch

A place that is a URL is `remote`'s, what changed since a former version `delta`'s.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import quote

from msgspec import Meta
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.protocols import Transport
from pipeline.weights.delta import layered
from pipeline.weights.remote import RemoteTransport, opened
from pipeline.weights.store import KEPT_VERSIONS, Store, host, name_of, read, write

log = logging.getLogger(__name__)

_NAME = re.compile(r"\.?v(\d+)\.e(\d+)\.(safetensors|.*\.partial)")


def build(*, folder: str, whole_every: Annotated[int, Meta(ge=1)] = 1, run: str) -> Transport:
    """`folder` is a path, or a URL that fsspec knows. One version in `whole_every` travels whole,
    the others as what changed. Raises ConfigError for a place that cannot be reached."""
    if "://" not in folder:
        return layered(partial(FilesTransport, folder=folder, run=run), whole_every)
    system, path = opened(folder)
    if "file" in system.protocol:
        return layered(partial(FilesTransport, folder=path, run=run), whole_every)
    make = partial(RemoteTransport, system=system, folder=path, run=run)
    return layered(make, whole_every)


class FilesTransport(Store):
    """Versions of a run lie in `FOLDER/RUN`, as `v12.e3.safetensors`: version 12 by epoch 3.

    The newest two stay, also when the trainer has ended, for engines that join. Whether another
    sender lives cannot be known across machines: what lower epochs left goes, except the newest
    two, and a sender of a lower epoch that does live has been fenced.
    """

    def __init__(
        self, *, folder: str, run: str, lane: str = "", kept: int | None = KEPT_VERSIONS
    ) -> None:
        """`lane` is a folder within the run's. Raises ConfigError where there is no such folder:
        it may not be mounted."""
        super().__init__(folder, kept=kept)
        if not folder or not Path(folder).is_dir():
            rule = f"there is no such folder on {host()}"
            remedy = "mount it, or name one that all machines of the run share"
            raise ConfigError("weights.folder", folder, rule=rule, remedy=remedy)
        self._folder = Path(folder) / quote(run, safe="") / lane

    def _write(self, version: int, epoch: int, tensors: dict[str, Tensor]) -> str:
        if not self._folder.is_dir():
            self._folder.parent.mkdir(exist_ok=True)
            self._folder.mkdir(exist_ok=True)
        self._sweep(epoch)  # before a write: it may be what the disk is full of
        return str(write(self._folder / name_of(version, epoch), tensors))

    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        yield from read(self._here(location))

    def _remove(self, location: str) -> None:
        Path(location).unlink(missing_ok=True)

    def _is_there(self, location: str) -> bool:
        return self._here(location).exists()

    def _here(self, location: str) -> Path:
        return self._folder / Path(location).name  # it may be mounted elsewhere there

    def _shown(self, location: str) -> str:
        return str(self._here(location))

    def _doubt(self, location: str) -> str:
        if self._is_there(location):
            return ""
        here = ", ".join(left.path.name for left in _lying(self._folder)) or "nothing of the run"
        return (
            f"; the trainer wrote {location}, and {host()} sees {here} in {self._folder}: unless it"
            " was dropped since, mount the trainer's weights.folder here, or name one that both"
            " share"
        )

    def _sweep(self, epoch: int) -> None:
        lying = sorted(_lying(self._folder))
        spared = self._spared([left for left in lying if left.path.suffix != ".partial"])
        for left in lying:
            if left.epoch < epoch and left not in spared:
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

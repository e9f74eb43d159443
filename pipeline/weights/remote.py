"""Weights through whatever place fsspec has a URL for: an object store, another machine. † torch

A version is a file as in `files`, made among this machine's temporary files and moved from there,
and moved there to be read. What such a place does to two who write at once is its own affair, so
no name is written by two, and only what is whole there is announced.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import fsspec
from torch import Tensor

from pipeline.bus.connection import mask
from pipeline.errors import ConfigError
from pipeline.weights.folders import Folder, sweep
from pipeline.weights.store import KEPT_VERSIONS, Store, host, name_of, read, write

log = logging.getLogger(__name__)

_NAME = re.compile(r"v(\d+)\.e(\d+)\.safetensors")


def opened(url: str) -> tuple[Any, str]:
    """The file system, and the path in it. Raises ConfigError for a URL without a driver here."""
    try:
        system, path = fsspec.core.url_to_fs(url)
    except Exception as exc:  # a driver's own, of any kind
        rule = f"{host()} has no way to such a URL ({exc})"
        remedy = "install the driver that fsspec names for it, or change the URL"
        raise ConfigError("weights.folder", mask(url), rule=rule, remedy=remedy) from exc
    return system, path


class RemoteTransport(Store):
    """Versions of a run lie at `URL/RUN`, as in `files`, and go as there."""

    faults: ClassVar[tuple[type[Exception], ...]] = (Exception,)  # each driver has its own

    def __init__(
        self,
        *,
        system: Any,
        folder: str,
        run: str,
        lane: str = "",
        kept: int | None = KEPT_VERSIONS,
    ) -> None:
        """Raises ConfigError where the place does not answer."""
        self._system, self._run = system, run
        self._folder = "/".join(
            [folder.rstrip("/"), quote(run, safe=""), *([lane] if lane else [])]
        )
        super().__init__(system.unstrip_protocol(folder), kept=kept)
        try:
            self._names()
        except Exception as exc:  # a driver's own, of any kind
            rule = f"cannot be reached from {host()} ({exc})"
            remedy = "check the URL, the network, and what its driver reads from the environment"
            raise ConfigError("weights.folder", self._place, rule=rule, remedy=remedy) from exc

    def _write(self, version: int, epoch: int, tensors: dict[str, Tensor]) -> str:
        self._sweep(epoch)
        self._system.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{name_of(version, epoch)}"
        with self._local() as local:
            write(local, tensors)
            try:
                self._system.put_file(str(local), path)
            except Exception:  # some places keep what they were given of it
                with suppress(Exception):
                    self._system.rm_file(path)
                raise
        return str(self._system.unstrip_protocol(path))

    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        with self._local() as local:
            self._system.get_file(self._here(location), str(local))
            yield from read(local)

    @contextmanager
    def _local(self) -> Iterator[Path]:
        """A file for a while; where its process is killed it goes when another makes one."""
        here = Path(gettempdir())
        sweep(here)
        folder = Folder(here, self._run)
        try:
            yield folder.path / "version"
        finally:
            folder.close()

    def _remove(self, location: str) -> None:
        if self._is_there(location):
            self._system.rm_file(self._here(location))

    def _is_there(self, location: str) -> bool:
        return location.rpartition("/")[2] in self._names()

    def _here(self, location: str) -> str:
        return f"{self._folder}/{location.rpartition('/')[2]}"

    def _shown(self, location: str) -> str:
        return str(self._system.unstrip_protocol(self._here(location)))

    def _doubt(self, location: str) -> str:
        names = self._names()
        if location.rpartition("/")[2] in names:
            return ""
        here = ", ".join(sorted(names)) or "nothing of the run"
        place = self._system.unstrip_protocol(self._folder)
        return (
            f"; the trainer wrote {location}, and {host()} sees {here} in {place}: unless it was"
            " dropped since, name one place that both reach"
        )

    def _names(self) -> list[str]:
        """Of the versions that lie there."""
        self._system.invalidate_cache()
        try:
            paths = self._system.ls(self._folder, detail=False)
        except FileNotFoundError:  # the first version makes it
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
        return [name for name in names if _NAME.fullmatch(name)]

    def _sweep(self, epoch: int) -> None:
        lying = sorted(map(_left, self._names()))
        spared = self._spared(lying)
        for left in lying:
            if left.epoch < epoch and left not in spared:
                log.info("removing %s, left by epoch %d", left.name, left.epoch)
                with suppress(*self.faults):  # gone already: the version that is sent stands
                    self._system.rm_file(self._here(left.name))


class _Left(NamedTuple):
    epoch: int
    version: int
    name: str


def _left(name: str) -> _Left:
    found = _NAME.fullmatch(name)
    assert found, "only versions are listed"
    return _Left(int(found[2]), int(found[1]), name)

"""Versions that lie somewhere until they are fetched: whole or not at all, the newest two kept.
† torch

What the transports `shm`, `files` and `redis` have in common. Where versions lie, and what those
that died left there, is theirs; what a version must contain is checked in `staging`.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.bus.errors import MemoryFull, Unreachable
from pipeline.disk import new_file
from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import Held

log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT_VERSIONS = 2
FAULTS = (SafetensorError, OSError, RuntimeError, MemoryFull, Unreachable)
"""What reading and writing raise; RuntimeError where two names share one tensor's memory."""


class Store(ABC):
    """The sender's and the receiver's side of one place; a sender removes what it sent itself."""

    faults: ClassVar[tuple[type[Exception], ...]] = FAULTS

    def __init__(self, place: str, *, kept: int | None = KEPT_VERSIONS) -> None:
        """`place` is for messages; of what was sent the newest `kept` stay, or all."""
        self._place, self._kept = place, kept
        self._sent: dict[int, str] = {}

    @abstractmethod
    def _write(self, version: int, epoch: int, tensors: dict[str, Tensor]) -> str:
        """Where the version lies now, whole."""

    @abstractmethod
    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        """Private copies of a version's tensors."""

    @abstractmethod
    def _remove(self, location: str) -> None:
        """It need not be there any more."""

    @abstractmethod
    def _is_there(self, location: str) -> bool:
        """Whether the version is, as far as a look tells."""

    def _spared(self, whole: list[T]) -> list[T]:
        """Of what lies there whole, the oldest first: what a sweep leaves, whoever sent it."""
        if self._kept is None:
            return [] if self._sent else whole
        return whole[-self._kept :]

    def _shown(self, location: str) -> str:
        """Where this machine looks for the version, for messages."""
        return location

    def _doubt(self, location: str) -> str:
        """What else may be wrong where the version cannot be read; nothing, or a clause."""
        return ""

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        """Write the version, whole or not at all; where it is. Raises WeightsError."""
        try:
            location = self._write(version, epoch, dict(tensors))
        except self.faults as exc:
            said = f"version {version} cannot be written under {self._place}: {exc}"
            raise WeightsError(said) from exc
        self._sent[version] = location
        for old in sorted(self._sent)[: -self._kept] if self._kept else ():
            self.drop(old)
        return location

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        """Private copies, aligned as torch's own. Raises WeightsError."""
        location = manifest.location
        try:
            yield from self._read(location)
        except self.faults as exc:
            said = f"version {manifest.version} cannot be read from {self._shown(location)}: {exc}"
            raise WeightsError(said + self._doubt(location)) from exc

    def drop(self, version: int) -> None:
        """Remove the version if it was sent from here; those who read it may have to try again.

        What cannot be removed now stays until a sender of a later epoch sweeps.
        """
        if location := self._sent.pop(version, ""):
            try:
                self._remove(location)
            except self.faults as exc:  # the version that is sent stands
                log.warning("%s was not removed: %s", self._shown(location), exc)

    def is_intact(self) -> bool:
        """Whether all that was sent from here, and was not dropped, is there still."""
        try:
            return all(map(self._is_there, self._sent.values()))
        except self.faults:
            return False


def name_of(version: int, epoch: int) -> str:
    """With the epoch: no fence in Redis keeps a trainer that was replaced from writing files."""
    return f"v{version}.e{epoch}.safetensors"


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    """Whoever sees the name sees all of the file, also over NFS: it is synced, then renamed."""
    with new_file(path) as whole:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, whole)
        whole.chmod(0o644)  # engines may be another user's; who may enter the folder is its owner's
    return path


def read(path: Path) -> Iterator[tuple[str, Tensor]]:
    """By reads, not mapped: a file that shrinks, or a server that is lost, must not kill us."""
    with safe_open(path, framework="pt", backend="pread") as file:
        for name in file.keys():  # noqa: SIM118  not a mapping
            yield name, file.get_tensor(name).clone()


def host() -> str:
    """This machine, for messages."""
    return os.uname().nodename

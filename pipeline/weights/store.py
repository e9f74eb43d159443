"""Versions as files of one folder: written whole or not at all, and the newest two kept. † torch

What the transports `shm` and `files` have in common. Where the folder is, and what else goes from
it, is theirs; what a version must contain is checked in `staging`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.disk import new_file
from pipeline.errors import WeightsError
from pipeline.messages import Manifest

KEPT_VERSIONS = 2
FAULTS = (SafetensorError, OSError, RuntimeError)
"""What reading and writing raise; RuntimeError where two names share one tensor's memory."""


class Store(ABC):
    """The sender's and the receiver's side of a folder; a sender removes what it sent itself."""

    def __init__(self, root: Path, run: str) -> None:
        self._root, self._run = root, run
        self._sent: dict[int, Path] = {}

    @abstractmethod
    def _home(self, epoch: int) -> Path:
        """The folder to write to, somewhere under the root; called before every version."""

    @abstractmethod
    def _find(self, manifest: Manifest) -> Path:
        """The version's file, as seen from this machine."""

    def _doubt(self, path: Path) -> str:
        """What else may be wrong where the file cannot be read; nothing, or a clause."""
        return ""

    def send(self, version: int, tensors: Iterable[tuple[str, Tensor]], *, epoch: int) -> str:
        """Write the version, whole or not at all; its path. Raises WeightsError."""
        try:
            path = write(self._home(epoch) / name_of(version, epoch), dict(tensors))
        except FAULTS as exc:
            said = f"version {version} cannot be written under {self._root}: {exc}"
            raise WeightsError(said) from exc
        self._sent[version] = path
        for old in sorted(self._sent)[:-KEPT_VERSIONS]:
            self.drop(old)
        return str(path)

    def receive(self, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
        """Private copies, aligned as torch's own. Raises WeightsError."""
        path = self._find(manifest)
        try:
            yield from read(path)
        except FAULTS as exc:
            said = f"version {manifest.version} cannot be read from {path}: {exc}"
            raise WeightsError(said + self._doubt(path)) from exc

    def drop(self, version: int) -> None:
        """Unlink the version if it was sent from here; those who read it may have to try again."""
        if path := self._sent.pop(version, None):
            path.unlink(missing_ok=True)


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

"""Weights through shared memory: one file a version, for processes of one machine.

Plain files, since `multiprocessing.shared_memory` unlinks a segment when its maker dies (Python
3.11's resource tracker). What a version must contain is checked in `pipeline.weights.staging`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import WeightsError
from pipeline.messages import Manifest

KEPT_VERSIONS = 2


def default_folder() -> Path:
    """/dev/shm where there is one, else the folder for temporary files."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


class ShmTransport:
    """Each sender has a folder of its own, `sluice-RUN.TOKEN`, locked for as long as it lives.

    The first `send` removes the folders of this run whose senders are dead, and no others. The
    newest two versions stay for engines that join.
    """

    def __init__(self, *, folder: str | None = None, run: str) -> None:
        """`folder` is shared by all processes of the run on this machine; opens nothing."""
        self._root = Path(folder) if folder else default_folder()
        self._prefix = f"sluice-{quote(run, safe='')}"
        self._own: Path | None = None
        self._remove: Callable[[], object] = lambda: None
        self._sent: list[int] = []

    def send(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> str:
        """Write the version, whole or not at all; its path. Raises WeightsError."""
        try:
            path = self._write(version, {name: tensor.contiguous() for name, tensor in tensors})
        except (SafetensorError, OSError) as exc:
            raise WeightsError(
                f"version {version} cannot be written under {self._root}: {exc}"
            ) from exc
        self._sent = sorted({*self._sent, version})
        for old in self._sent[:-KEPT_VERSIONS]:
            self.drop(old)
        return str(path)

    def receive(self, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
        """Private copies, so that they outlive the file and are aligned as torch's own are."""
        try:
            with safe_open(manifest.location, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  not a mapping
                    yield name, file.get_tensor(name).clone()
        except (SafetensorError, OSError) as exc:
            raise WeightsError(
                f"version {manifest.version} cannot be read from {manifest.location}: {exc}"
            ) from exc

    def drop(self, version: int) -> None:
        """Unlink the version; those who hold its tensors keep them."""
        if version in self._sent:
            self._sent.remove(version)
            self._path(version).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what this sender wrote; a process that ends in order does so by itself."""
        self._remove()
        self._own, self._sent = None, []

    def _write(self, version: int, tensors: dict[str, Tensor]) -> Path:
        path = self._path(version)
        partial = path.with_suffix(".partial")
        try:
            save_file(tensors, partial)
            return partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        if self._own is None:
            self._own = self._claim()
            self._sweep()
        return self._own / f"v{version}.safetensors"

    def _claim(self) -> Path:
        """Locked before it gets its name, so that a sweep never sees it free."""
        nameless = Path(tempfile.mkdtemp(prefix=".sluice-", dir=self._root))
        lock = _locked(nameless)
        own = nameless.rename(self._root / f"{self._prefix}.{secrets.token_hex(6)}")
        self._remove = weakref.finalize(self, _remove, own, lock, os.getpid())
        return own

    def _sweep(self) -> None:
        for folder in self._root.glob(f"{self._prefix}.*"):
            if folder.name.rpartition(".")[0] != self._prefix:
                continue
            try:
                lock = _locked(folder)
            except OSError:  # its sender lives, this one perhaps, or another sweep was faster
                continue
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _remove(folder: Path, lock: int, pid: int) -> None:
    if os.getpid() == pid:  # and not a fork, which holds a copy of the sender
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock; the kernel frees it when its holder dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

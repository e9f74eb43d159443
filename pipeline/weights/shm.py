"""Weights through shared memory: one file a version, for processes of one machine.

Plain files, since `multiprocessing.shared_memory` unlinks a segment when its maker dies (Python
3.11's resource tracker). Whose folder they lie in is `folders`'; what a version must contain is
checked in `staging`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.weights.folders import Folder, default_root, sweep

KEPT_VERSIONS = 2


class ShmTransport:
    """Each sender has a folder of its own.

    The first `send` removes those whose senders are dead, and no others. The newest two versions
    stay for engines that join.
    """

    def __init__(self, *, folder: str | None = None, run: str) -> None:
        """`folder` is shared by all processes of the run on this machine; opens nothing."""
        self._root = Path(folder) if folder else default_root()
        self._run = run
        self._own: Folder | None = None
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
        if self._own is not None:
            self._own.close()
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
            self._own = Folder(self._root, self._run)
            sweep(self._root)
        return self._own.path / f"v{version}.safetensors"

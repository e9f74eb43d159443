"""Weights through shared memory: one file a version, for processes of one machine. † torch

Plain files, since `multiprocessing.shared_memory` unlinks a segment when its maker dies (Python
3.11's resource tracker). Whose folder they lie in is `folders`', how they are written `store`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from pipeline.weights.folders import Folder, default_root, sweep
from pipeline.weights.store import Store, name_of, read, write


class ShmTransport(Store):
    """Each sender has a folder of its own.

    The first `send` removes those whose senders are dead, and no others. The newest two versions
    stay for engines that join.
    """

    def __init__(self, *, folder: str | None = None, run: str) -> None:
        """`folder` is shared by all processes of the run on this machine; opens nothing."""
        self._root, self._run = Path(folder) if folder else default_root(), run
        super().__init__(str(self._root))
        self._own: Folder | None = None

    def close(self) -> None:
        """Remove what this sender wrote; a process that ends in order does so by itself."""
        if self._own is not None:
            self._own.close()
        self._own, self._sent = None, {}

    def _write(self, version: int, epoch: int, tensors: dict[str, Tensor]) -> str:
        if self._own is None:
            self._own = Folder(self._root, self._run)
            sweep(self._root)
        return str(write(self._own.path / name_of(version, epoch), tensors))

    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        yield from read(Path(location))

    def _remove(self, location: str) -> None:
        Path(location).unlink(missing_ok=True)

    def _is_there(self, location: str) -> bool:
        return Path(location).exists()

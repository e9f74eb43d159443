"""Weights through shared memory: one file a version, for processes of one machine. † torch

Plain files, since `multiprocessing.shared_memory` unlinks a segment when its maker dies (Python
3.11's resource tracker). Whose folder they lie in is `folders`', how they are written `store`'s.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.messages import Manifest
from pipeline.weights.folders import Folder, default_root, sweep
from pipeline.weights.store import Store


class ShmTransport(Store):
    """Each sender has a folder of its own.

    The first `send` removes those whose senders are dead, and no others. The newest two versions
    stay for engines that join.
    """

    def __init__(self, *, folder: str | None = None, run: str) -> None:
        """`folder` is shared by all processes of the run on this machine; opens nothing."""
        super().__init__(Path(folder) if folder else default_root(), run)
        self._own: Folder | None = None

    def close(self) -> None:
        """Remove what this sender wrote; a process that ends in order does so by itself."""
        if self._own is not None:
            self._own.close()
        self._own, self._sent = None, {}

    def _home(self, epoch: int) -> Path:
        if self._own is None:
            self._own = Folder(self._root, self._run)
            sweep(self._root)
        return self._own.path

    def _find(self, manifest: Manifest) -> Path:
        return Path(manifest.location)

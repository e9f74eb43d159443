"""Folders that senders of weights fill: one each, locked while its sender lives, swept afterwards.

Free of torch, so that a supervisor can sweep too. What lies in a folder is its transport's affair.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from urllib.parse import quote

from pipeline.disk import locked

_NAME = re.compile(r"sluice-.+\.[0-9a-f]{12}")


def default_root() -> Path:
    """/dev/shm where there is one, else the folder for temporary files."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


class Folder:
    """`sluice-RUN.TOKEN`: there until `close`, or until its process ends in order."""

    def __init__(self, root: Path, run: str) -> None:
        """Raises OSError where it cannot be made."""
        # Locked before it gets its name, so that a sweep never sees it free.
        nameless = Path(tempfile.mkdtemp(prefix=".sluice-", dir=root))
        lock = locked(nameless)
        name = f"sluice-{quote(run, safe='')}.{secrets.token_hex(6)}"
        self.path = nameless.rename(root / name)
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove it, and what is in it."""
        self._remove()


def sweep(root: Path) -> int:
    """Remove the folders under `root` whose senders are dead, of whatever run; how many.

    One that was killed can remove nothing, and its run never comes back under the same name.
    """
    swept = 0
    for folder in root.glob("sluice-*"):
        if not _NAME.fullmatch(folder.name):
            continue
        try:
            lock = locked(folder)
        except OSError:  # its sender lives, or is another user's, or another sweep was faster
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        swept += 1
    return swept


def _remove(folder: Path, lock: int, pid: int) -> None:
    if os.getpid() == pid:  # and not a fork, which holds a copy of the sender
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)

"""What must survive a crash: written beside its place, synced, and put there by a rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"


def write(path: Path, data: bytes) -> None:
    """A whole file at `path`, or none. Raises OSError."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; whole at `path` once the block has ended well. Raises OSError."""
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for part in (*partial.rglob("*"), partial):
            sync(part)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """What was written to the file or folder reaches the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

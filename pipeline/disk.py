"""What must survive a crash: written beside its place, synced, and put there by a rename.

Each writer has a folder of its own for it, `.NAME.HOST.TOKEN.partial`, locked while it lives, so
that several may write the same thing at once, and one that was killed is cleaned up after.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HOST = os.uname().nodename
_PARTIAL = re.compile(rf"\..+\.{re.escape(_HOST)}\.[0-9a-f]{{8}}\.partial")


def write(path: Path, data: bytes) -> None:
    """A whole file at `path`, or none. Raises OSError."""
    with new_file(path) as partial:
        partial.write_bytes(data)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to; what is there is whole at `path` once the block has ended well.

    It replaces a file that is there already. Raises OSError.
    """
    with _beside(path) as folder:
        yield folder / path.name
        sync(folder / path.name)
        (folder / path.name).rename(path)
    sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; whole at `path` once the block has ended well.

    Raises OSError, also where a folder is there that is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as folder:
        yield folder
        mode = folder.stat().st_mode & 0o666
        for part in (*folder.rglob("*"), folder):
            if part.is_file():
                part.chmod(mode)  # some libraries make files for their user alone
            sync(part)
        folder.rename(path)
    sync(path.parent)


def free_bytes(path: Path) -> int:
    """What is left to us where `path` is, or will be."""
    there = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
    return shutil.disk_usage(there).free


def sync(path: Path) -> None:
    """What was written to the file or folder reaches the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock; the kernel frees it when its holder dies.

    Raises OSError where another holds it, or the file system (NFS) cannot lock folders.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A folder beside the path, gone with whatever is left in it when the block ends."""
    _sweep(path.parent)
    token = secrets.token_hex(4)
    partial = path.with_name(f".{path.name}.{_HOST}.{token}.partial")
    with _kept(path.with_name(f".{token}")) as nameless:
        try:
            nameless.rename(partial)  # locked before it gets its name, so no sweep sees it free
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _kept(folder: Path) -> Iterator[Path]:
    """A new folder, locked where that can be: where not, no sweep can lock it either."""
    folder.mkdir()
    lock = None
    with suppress(OSError):
        lock = locked(folder)
    try:
        yield folder
    finally:
        if lock is not None:
            os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove what writers of this host have left that are dead.

    A lock may say nothing of other hosts, even where it can be had.
    """
    for name in filter(_PARTIAL.fullmatch, os.listdir(parent)):  # among many records, so in a hurry
        with suppress(OSError):
            lock = locked(parent / name)
            shutil.rmtree(parent / name, ignore_errors=True)
            os.close(lock)

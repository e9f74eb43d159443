"""What proves that the files of a checkpoint are those that were written. Pure but for the disk.

The digests stand in the checkpoint's mark; what else is in that is the training service's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import SluiceError

MARK = "checkpoint.json"


def digests(folder: Path) -> dict[str, str]:
    """blake2b of every file but the mark, 16 bytes in hex, by its path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARK)
    return {str(path.relative_to(folder)): _digest(path) for path in paths}


def verify(folder: Path, written: Mapping[str, str]) -> None:
    """Raises SluiceError where a file is not what was `written`; others are not read."""
    for name, digest in written.items():
        there = _digest(path) if (path := folder / name).is_file() else ""
        if there != digest:
            found = f"has the digest {there}" if there else "is gone"
            raise SluiceError(
                f"{folder} is damaged: {name} {found}, and was written with {digest}: remove that"
                " folder, to go on from the one before"
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

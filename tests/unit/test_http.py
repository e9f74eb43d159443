"""The HTTP thread that every process has: who is let in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from pipeline.metrics import Metrics
from pipeline.serve import MOST_CLIENTS, Http

SECONDS = 10.0


@pytest.fixture
def http() -> Iterator[Http]:
    door = Http(Metrics("crowd"))
    yield door
    door.close()


def test_connections_that_say_nothing_leave_the_loop_its_descriptors(http: Http) -> None:
    host, _, port = http.address.rpartition(":")
    with ExitStack() as opened:
        for _ in range(MOST_CLIENTS):
            opened.enter_context(socket.create_connection((host, int(port)), SECONDS))
        with socket.create_connection((host, int(port)), SECONDS) as one_more:
            assert one_more.recv(1) == b"", "it is hung up on at once"
    assert status_at_last(f"http://{http.address}/healthz") == 200


def status_at_last(url: str) -> int:
    """Of the first answer: what was closed here gives its place back a little later."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urlopen(url, timeout=SECONDS) as reply:
                return int(reply.status)
        except OSError:
            assert time.monotonic() < deadline, "nobody is let in any more"

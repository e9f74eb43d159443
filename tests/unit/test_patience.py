"""A server that takes connections and never answers: one deadline for all attempts of an act."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of, mask
from pipeline.bus.errors import Unreachable


@pytest.fixture
def silent() -> Iterator[str]:
    """The kernel takes its connections; nobody reads them."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_a_server_that_hangs_is_given_up_at_one_deadline(silent: str) -> None:
    bus = Bus(client_of(silent, patience_seconds=0.5, answer_seconds=0.1), "run")
    started = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer"):
        bus.state()
    assert 0.5 < time.monotonic() - started < 3.0


def test_a_server_that_refuses_is_tried_until_the_same_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"redis://127.0.0.1:{free.getsockname()[1]}/0"
    bus = Bus(client_of(url, patience_seconds=0.5, answer_seconds=0.1), "run")
    started = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer"):
        bus.state()
    assert 0.4 < time.monotonic() - started < 3.0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@host:1/0", "redis://me:***@host:1/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://me:sec/ret@host", "redis://me:***@host"),
        ("redis://me:secr@t@host", "redis://me:***@host"),
        ("redis://me:secret@[::1", "redis://me:***@[::1"),
        ("redis://host:1/0?password=secret", "redis://host:1/0"),
        ("redis://host:1/0?password=secret&db=2", "redis://host:1/0?db=2"),
        ("unix:///tmp/a@b/s.sock?db=2", "unix:///tmp/a@b/s.sock?db=2"),
        ("", ""),
    ],
)
def test_a_password_is_masked_in_every_kind_of_url(url: str, shown: str) -> None:
    assert mask(url) == shown

"""The run that most tests of the bus start from, and the means to start another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from acts import Acts, Stutterer

from pipeline.bus.blobs import PIECE_BYTES
from pipeline.bus.bus import Bus
from pipeline.bus.connection import connect


@pytest.fixture
def piece_bytes() -> int:
    """Beyond how many bytes cargo travels in pieces."""
    return PIECE_BYTES


@pytest.fixture(params=["once", "twice"])
def bus(
    server_url: str, run_name: str, piece_bytes: int, request: pytest.FixtureRequest
) -> Iterator[Bus]:
    """Every claim must hold as well where each act reaches the server twice."""
    client = connect(server_url)
    if request.param == "twice":
        client = Stutterer(connection_pool=client.connection_pool)
    bus = Bus(client, run_name, piece_bytes=piece_bytes)
    yield bus
    bus.purge()
    bus.close()


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server_url, protocol=2) as client:
        yield client


@pytest.fixture
def start(bus: Bus, client: redis.Redis, run_name: str) -> Callable[..., Acts]:
    return lambda **sizes: Acts(bus, client, run_name, **sizes)


@pytest.fixture
def acts(start: Callable[..., Acts]) -> Acts:
    return start()

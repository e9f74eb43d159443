"""Field cases of processes on one machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

from pipeline.errors import ConfigError
from pipeline.metrics import Metrics
from pipeline.serve import Http


def test_C113_eight_doors_that_open_at_once_have_a_port_each() -> None:
    with ThreadPoolExecutor(8) as together:
        doors = [*together.map(lambda number: Http(Metrics(f"s{number}")), range(8))]
        try:
            assert len({door.address for door in doors}) == 8
            assert urlopen(f"http://{doors[-1].address}/healthz").read() == b"ok\n"
        finally:
            [*together.map(Http.close, doors)]


def test_C113_a_port_that_is_taken_is_named() -> None:
    door = Http(Metrics("first"))
    try:
        with pytest.raises(ConfigError, match=f"--http = '{door.address}': .* in use.*; name a"):
            Http(Metrics("second"), door.address)
    finally:
        door.close()

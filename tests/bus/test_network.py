"""A connection that breaks anywhere: the act is sent again, and its effect is that of one act."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
from acts import Acts
from proxy import DELAY_SECONDS, Fault, Proxy, between
from test_repeats import ACTS, FEW_BYTES, prepared, world

from pipeline.bus.blobs import PIECE_BYTES
from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.bus.errors import Unreachable

FAULTS: tuple[Fault, ...] = ("lose the request", "cut the reply", "lose the reply")


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    if not server_url.startswith("unix://"):
        pytest.skip("the proxy stands in front of a unix socket")
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        server = Path(server_url.removeprefix("unix://").partition("?")[0])
        with between(server, Path(folder) / "p.sock") as proxy:
            yield proxy


@pytest.fixture
def start_behind(proxy: Proxy, client: redis.Redis, run_name: str) -> Iterator[Callable[..., Acts]]:
    with _behind(proxy, run_name, PIECE_BYTES) as bus:
        yield lambda **sizes: Acts(bus, client, run_name, **sizes)


@contextmanager
def _behind(proxy: Proxy, run: str, piece_bytes: int) -> Iterator[Bus]:
    # A reply that is late by `DELAY_SECONDS` is one that was lost.
    far = client_of(proxy.url, answer_seconds=DELAY_SECONDS / 2)
    bus = Bus(far, run, piece_bytes=piece_bytes)
    yield bus
    bus.purge()
    bus.close()


@pytest.mark.parametrize(
    ("name", "fault"), [*product(ACTS, FAULTS), *product(("deliver", "score", "commit"), ["delay"])]
)
def test_an_act_whose_connection_breaks_has_the_effect_of_one(
    start_behind: Callable[..., Acts], proxy: Proxy, name: str, fault: Fault
) -> None:
    _break(start_behind, proxy, name, [fault])


TRIPS = {"save": 4, "deliver": 3, "score": 3}
"""How many round trips it takes where cargo travels in pieces; a save has a look first."""

BROKEN = [(name, trip) for name, trips in TRIPS.items() for trip in range(trips)]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
@pytest.mark.parametrize(("name", "trip"), BROKEN)
def test_so_it_has_where_its_pieces_are_on_the_way(
    proxy: Proxy, client: redis.Redis, run_name: str, name: str, trip: int, fault: Fault
) -> None:
    with _behind(proxy, run_name, FEW_BYTES) as bus:
        faults: list[Fault] = ["none"] * trip
        _break(lambda **sizes: Acts(bus, client, run_name, **sizes), proxy, name, [*faults, fault])


def _break(start: Callable[..., Acts], proxy: Proxy, name: str, faults: Sequence[Fault]) -> None:
    act, first, again = ACTS[name]
    acts, stage = prepared(start)
    proxy.faults = [*faults]
    reply = act(acts, stage)
    assert proxy.met == [*faults]
    said = reply if isinstance(reply, list) else [reply]
    may = [*zip(first, again, strict=True)] if isinstance(reply, list) else [(first, again)]
    assert all(one in two for one, two in zip(said, may, strict=True)), "it may hear it was done"
    after = _without_ids(world(acts))
    acts.bus.purge()
    plain, stage = prepared(start)
    act(plain, stage)
    assert after == _without_ids(world(plain))


def _without_ids(found: dict[bytes, Any]) -> dict[bytes, Any]:
    """Entries have the time in their ids, and the deadline is a time."""
    ids: set[bytes] = set()
    out: dict[bytes, Any] = {}
    for key, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0][1], dict):
            ids |= {entry for entry, _ in value}
            value = [fields for _, fields in value]
        elif key.endswith(b":due"):
            value = [group for group, _ in value]
        out[key] = value
    return {
        key: {f: b"a time" if v in ids or f == b"ready" else v for f, v in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in out.items()
    }


def test_the_connection_may_break_many_times_in_a_row(
    start_behind: Callable[..., Acts], proxy: Proxy
) -> None:
    acts = start_behind()
    proxy.faults = ["cut the reply", "refuse", "lose the reply", "lose the request"]
    assert acts.admit(2) == "ok"
    acts.engine("e:1")
    assert proxy.faults == [] and acts.bus.state().cursor == 2
    assert len(acts.take("e:1", 2)) == 2


def test_a_take_whose_reply_was_cut_hands_out_the_same_work(
    start_behind: Callable[..., Acts], proxy: Proxy
) -> None:
    acts = start_behind(window=16, per_step=16)
    engine = acts.engine("e:1")
    acts.admit(4)
    proxy.faults = ["cut the reply"]
    leases = acts.take(engine, 2)
    assert [lease.group for lease in leases] == ["g0", "g1"]
    assert [lease.strikes for lease in leases] == [0, 0]
    assert acts.bus.audit().leases[0].prompts == 2


def test_a_network_that_stays_bad_ends_with_one_line(proxy: Proxy, run_name: str) -> None:
    bus = Bus(client_of(proxy.url, patience_seconds=0.3), run_name)
    proxy.faults = ["refuse"] * 100
    with pytest.raises(Unreachable, match="does not answer"):
        bus.state()
    bus.close()

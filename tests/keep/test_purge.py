"""`sluice purge`: one run goes, and nothing else; nobody who is alive loses his run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from acts import Acts
from keeper import Sluice, refusal

from pipeline.bus.bus import Bus
from pipeline.errors import SluiceError
from pipeline.messages import Beat

Everything = dict[bytes, object]

READ = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: client.xrange(key),
}


def everything(client: redis.Redis, *, but: str) -> Everything:
    found = [key for key in client.scan_iter(count=1000) if not key.startswith(but.encode())]
    return {key: READ[client.type(key)](client, key) for key in found}


@pytest.fixture
def left(acts: Acts) -> Acts:
    """A run whose processes were all killed, and whose leases are over."""
    acts.make_ready(2)
    acts.admit(1)
    for boot in acts.client.zrange(acts.keys.beat, 0, -1):
        acts.silence(boot.decode(), 16)
    return acts


@pytest.fixture
def others(server_url: str, client: redis.Redis, run_name: str) -> Iterator[list[Acts]]:
    """Runs whose names begin or end as this one's does, or would match it as a pattern."""
    stem = run_name[:-1]
    names = [run_name + "2", run_name + ".", run_name + "-2", stem + "_", "x" + run_name]
    made = [Acts(Bus.connect(server_url, name), client, name) for name in names]
    yield made
    for other in made:
        with closing(other.bus):
            other.bus.purge()


def test_it_deletes_every_key_of_the_run_and_no_other(
    left: Acts, others: list[Acts], sluice: Sluice, run_name: str, client: redis.Redis
) -> None:
    near = [f"sluice:{{{run_name}}}", f"sluice:{run_name}:run", f"sluice:{{{run_name}}}x:run"]
    for key in near:
        client.set(key, "not of the run")
    before = everything(client, but=left.keys.prefix)
    count = left.bus.keys()
    done = sluice("purge", "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert count > 8
    assert done.stdout.startswith(f"run {run_name}: {count} keys deleted at ")
    assert done.stdout.endswith(f"runs/{run_name} is as it was\n")
    assert left.bus.keys() == 0
    assert everything(client, but=left.keys.prefix) == before
    client.delete(*near)


@pytest.mark.parametrize("name", ["a*", "t?", "[a-z]*", "*", "{a}", "a b"])
def test_a_pattern_is_no_name(left: Acts, sluice: Sluice, name: str) -> None:
    count = left.bus.keys()
    assert refusal(sluice("purge", "--yes", "--set", f"name='{name}'")).startswith("--set name")
    assert left.bus.keys() == count


def test_the_folder_of_the_run_stays(left: Acts, sluice: Sluice, run_name: str) -> None:
    kept = Path("runs", run_name, "steps", "1")
    kept.parent.mkdir(parents=True)
    kept.write_text("a record")
    assert sluice("purge", "--yes").exit_code == 0
    assert kept.read_text() == "a record"


@pytest.mark.parametrize("answer", ["n\n", "no\n", "Y e s\n", "\n"])
def test_without_a_yes_nothing_goes(left: Acts, sluice: Sluice, answer: str, run_name: str) -> None:
    count = left.bus.keys()
    done = sluice("purge", input=answer)
    assert f"run {run_name} has {count} keys at " in done.stdout
    assert f"Its files in runs/{run_name} stay." in done.stdout
    assert left.bus.keys() == count


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_with_a_yes_it_goes(left: Acts, sluice: Sluice, answer: str) -> None:
    assert sluice("purge", input=answer).exit_code == 0
    assert left.bus.keys() == 0


def test_where_nobody_can_be_asked_it_wants_a_word(left: Acts, sluice: Sluice) -> None:
    count = left.bus.keys()
    done = sluice("purge", input="")
    assert done.exit_code == 2
    said = "sluice: sluice purge: asks first, and nobody is there to answer; give --yes\n"
    assert done.stderr.endswith(said)
    assert left.bus.keys() == count


def test_who_is_alive_is_named_and_keeps_his_run(left: Acts, sluice: Sluice, run_name: str) -> None:
    count = left.bus.keys()
    left.beat("inference-0:a")
    line = refusal(sluice("purge", "--yes"))
    assert line.startswith(f"name = '{run_name}': is alive: inference-0; stop its processes")
    assert left.bus.keys() == count


def test_a_process_of_another_release_counts_as_alive(left: Acts, sluice: Sluice) -> None:
    left.beat("inference-0:a")
    left.client.hset(left.keys.who, "inference-0:a", b"what only a later release can read")
    assert not [s for s in left.bus.snapshot().beats if s.beat.boot == "inference-0:a"]
    assert "is alive: inference-0;" in refusal(sluice("purge", "--yes"))


def test_who_said_goodbye_is_no_hindrance(left: Acts, sluice: Sluice) -> None:
    left.bus.beat(
        Beat(service="scoring", instance="scoring-0", boot="scoring-0:a", waiting_for="ended")
    )
    assert sluice("purge", "--yes").exit_code == 0


def test_a_run_that_is_not_there_is_one_line(others: list[Acts], sluice: Sluice) -> None:
    line = refusal(sluice("purge", "--yes"))
    assert ": no such run at " in line and "there are: " in line


def test_a_purge_that_was_cut_short_can_be_finished(
    left: Acts, sluice: Sluice, run_name: str
) -> None:
    left.client.delete(left.keys.run)
    assert "a purge was cut short; finish it with `sluice purge`" in refusal(sluice("doctor"))
    assert sluice("purge", "--yes").exit_code == 0
    assert left.bus.keys() == 0


def test_once_it_has_begun_no_act_makes_a_key_anew(left: Acts) -> None:
    """Who wakes up in the middle of a purge is told that there is no such run."""
    left.client.delete(left.keys.run)
    before = left.bus.keys()
    for act in (lambda: left.beat("late:a"), lambda: left.admit(1), lambda: left.take("e:1")):
        with pytest.raises(SluiceError, match="is not open on this server"):
            act()
    assert left.bus.keys() == before


def test_a_full_server_can_be_relieved(left: Acts, sluice: Sluice, client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    try:
        done = sluice("purge", "--yes")
    finally:
        client.config_set("maxmemory", 0)
    assert (done.exit_code, done.stderr) == (0, "")
    assert left.bus.keys() == 0

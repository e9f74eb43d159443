"""`sluice doctor` against a real server: what it sees, what it writes (nothing), how it exits."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
import redis
from acts import Acts
from click.testing import Result
from keeper import Sluice, refusal
from servers import running

from pipeline.bus.address import socket_of
from pipeline.bus.bus import Bus
from pipeline.messages import Beat
from services.up.embedded import Embedded
from services.up.spawn import Spawner


def line_of(done: Result, start: str) -> str:
    return next(line for line in done.stdout.splitlines() if line.strip().startswith(start))


def test_a_sound_run(manned: Acts, sluice: Sluice, server_url: str, run_name: str) -> None:
    manned.admit(3)
    (lease,) = manned.take(manned.engine("inference-0:t"))
    manned.deliver("inference-0:t", lease, 0)
    done = sluice("doctor")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"run {run_name} at {server_url}: running\n  step 0 of 10")
    assert line_of(done, "3 of 8 are out, 1 taken by an engine")
    assert line_of(done, "prompts 3, open 0, groups 0")
    assert line_of(done, "inference-0:t ").split()[1:3] == ["1", "0"]
    assert line_of(done, "generated").split() == ["generated", "1", "5"]
    assert done.stdout.endswith("sound: no fault was found\n")


def test_it_changes_nothing(manned: Acts, sluice: Sluice) -> None:
    group = manned.make_ready(2)[0]
    manned.admit(1)
    manned.commit(1, [group])

    def changes() -> int:
        """Of anything, by anybody, as the server counts them."""
        return int(manned.client.info("persistence")["rdb_changes_since_last_save"])

    before = changes()
    assert sluice("doctor").stdout
    assert changes() == before
    manned.admit(1)
    assert changes() > before


def test_the_last_dead_letters_are_shown_with_their_reasons(manned: Acts, sluice: Sluice) -> None:
    manned.admit(6)
    engine = manned.engine("inference-0:t")
    for lease in manned.take(engine, 6):
        manned.bus.prompts.fail(engine, lease, f"too long, {lease.group}")
    done = sluice("doctor")
    assert re.findall(r"group (g\d), in the hands of \S+: too long, (g\d)", done.stdout) == [
        (group, group) for group in ("g5", "g4", "g3", "g2", "g1")
    ]
    assert "and 1 before" in done.stdout
    assert done.exit_code == 0


def test_a_ledger_that_is_off_is_a_fault(manned: Acts, sluice: Sluice) -> None:
    manned.make_ready(1)
    manned.client.hincrby(manned.keys.ledger, "trained|tokens", 3)
    done = sluice("doctor")
    assert done.exit_code == 1
    assert "the ledger does not balance" in done.stdout.splitlines()[-1]


def test_a_group_without_its_ticket_is_a_fault(manned: Acts, sluice: Sluice) -> None:
    manned.admit(1)
    manned.client.xtrim(manned.keys.prompts, maxlen=0)
    done = sluice("doctor")
    assert done.exit_code == 1
    assert "group g0" in done.stdout.splitlines()[-1]


def test_a_process_that_fell_silent_is_a_fault_and_what_it_holds_is_told(
    manned: Acts, sluice: Sluice
) -> None:
    manned.admit(1)
    (lease,) = manned.take(manned.engine("inference-1:t"))
    manned.bus.beat(
        Beat(service="inference", instance="inference-1", boot="inference-1:t"), [lease.group]
    )
    manned.silence("inference-1:t", 41)
    done = sluice("doctor")
    assert done.exit_code == 1
    assert "  inference-1 holds 1 lease and has been silent for 41 s" in done.stdout.splitlines()
    assert line_of(done, "inference-1:t ").endswith("41.0 s, dead")


def test_a_run_that_failed_is_a_fault_with_its_reason(acts: Acts, sluice: Sluice) -> None:
    acts.bus.groups.finish(1, "failed", "no memory")
    done = sluice("doctor")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "  the run failed: no memory"


def test_a_run_that_is_not_there_is_one_line_that_names_those_that_are(
    acts: Acts, sluice: Sluice, run_name: str
) -> None:
    line = refusal(sluice("doctor", "--set", "name=absent"))
    assert line.startswith("name = 'absent': no such run at unix://")
    assert re.search(rf"there are: .*\b{run_name}\b.* \(--set name=NAME\)", line)


def test_of_many_runs_ten_are_named(
    acts: Acts, sluice: Sluice, server_url: str, run_name: str
) -> None:
    buses = [Bus.connect(server_url, f"{run_name}.{number}") for number in range(12)]
    for bus in buses:
        bus.open({}, window=1, per_step=1, lag_max=0, members=1)
    line = refusal(sluice("doctor", "--set", "name=absent"))
    assert re.search(r"and \d+ more \(--set", line) and line.count(",") <= 10
    for bus in buses:
        with closing(bus):
            bus.purge()


def test_a_server_without_any_run_says_that(sluice: Sluice, client: redis.Redis) -> None:
    line = refusal(sluice("doctor", "--redis", other_database(client)))
    assert line.endswith("there is no run at all; give another server (--redis URL)")


def other_database(client: redis.Redis) -> str:
    options = client.connection_pool.connection_kwargs
    if path := options.get("path"):
        return f"unix://{path}?db=15"
    return f"redis://{options['host']}:{options['port']}/15"


def test_without_a_server_one_line_says_how_to_give_one(
    sluice: Sluice, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_REDIS")
    line = refusal(sluice("doctor"))
    assert line == (
        f"--redis: is needed: `sluice up` keeps no server for run {run_name} here now; "
        "give --redis URL or set SLUICE_REDIS"
    )


def test_of_a_run_whose_up_has_stopped_it_says_where_to_look_and_how_to_go_on(
    sluice: Sluice, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_REDIS")
    Path("runs", run_name).mkdir(parents=True)
    page = Path("runs", run_name, "report.html")
    rest = "start `sluice up` again, which goes on with the run, or give --redis URL or set SLUICE"
    assert f"; make its report by `sluice report {run_name}`, or {rest}" in refusal(
        sluice("doctor")
    )
    page.touch()
    assert f"; read {page}, or {rest}" in refusal(sluice("doctor"))
    Path("runs", run_name, "ended").touch()
    assert f"; the run has ended: read {page}, or give --redis" in refusal(sluice("doctor"))


def test_the_server_of_up_is_found_by_its_link_in_the_runs_folder(
    manned: Acts, sluice: Sluice, server_url: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not server_url.startswith("unix://"):
        pytest.skip("the server has no socket")
    monkeypatch.delenv("SLUICE_REDIS")
    link = socket_of(Path("runs", run_name))
    link.parent.mkdir(parents=True)
    link.symlink_to(server_url.removeprefix("unix://"))
    assert sluice("doctor").exit_code == 0
    link.unlink()
    link.symlink_to("gone")
    assert refusal(sluice("doctor")).startswith("--redis: is needed")


def test_a_full_server_is_looked_at_all_the_same(
    manned: Acts, sluice: Sluice, client: redis.Redis
) -> None:
    client.script_flush()
    client.config_set("maxmemory", 1)
    try:
        done = sluice("doctor")
    finally:
        client.config_set("maxmemory", 0)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert line_of(done, "Redis is full: ")


@pytest.mark.parametrize("command", [("doctor",), ("purge", "--yes")], ids=["doctor", "purge"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicaof": "127.0.0.1 1"}, "redis URL = '{url}': it is a replica, which takes no "),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy of {url} = 'allkeys-lru': an "),
    ],
    ids=["read-only", "evicts"],
)
def test_a_server_that_is_unfit_is_one_line(
    sluice: Sluice, command: tuple[str, ...], options: dict[str, str], said: str
) -> None:
    with running(**options) as server:
        line = refusal(sluice(*command, "--redis", server.url))
        assert line.startswith(said.format(url=server.url))


@pytest.mark.parametrize("command", [("doctor",), ("purge", "--yes")], ids=["doctor", "purge"])
def test_where_no_server_answers_is_one_line(
    sluice: Sluice, command: tuple[str, ...], tmp_path: Path
) -> None:
    line = refusal(sluice(*command, "--redis", f"unix://{tmp_path}/s"))
    assert line.startswith(f"redis URL = 'unix://{tmp_path}/s': no server answers there; start a")


def test_the_server_that_up_keeps_can_be_found_while_it_runs(tmp_path: Path) -> None:
    link = socket_of(tmp_path)
    with Spawner() as spawner:
        server = Embedded(tmp_path, spawner, restarts=0)
        url = server.start()
        assert f"unix://{link.resolve()}" == url and link.is_symlink()
        assert link.is_socket()
        server.stop()
    assert not link.is_symlink()

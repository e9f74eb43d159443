"""Three engines on three hosts: one is cut off for a while, one is gone for good, the run goes on.

SLUICE_CUT_SECONDS=60 python -m pytest -m long tests/e2e/test_hosts.py
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, logged, network, sluice, why_not
from servers import Server
from stream import write_run

from benchmarks.chaos import recorded
from pipeline.bus.bus import Bus
from pipeline.ledger import in_flight
from pipeline.watch import Seen

pytestmark = [pytest.mark.long, pytest.mark.timeout(540)]

CUT_SECONDS = float(os.environ.get("SLUICE_CUT_SECONDS", "20"))
"""Longer than a lease, and than any act waits for an answer."""
MEMBERS, LEASE_SECONDS = 4, 5.0
PROMPTS = 60 + round(2.5 * CUT_SECONDS)
"""Enough that the run does not end before the host that was cut off is back at work."""
SERVICES = ("prompting", "scoring", "training")


@contextmanager
def server_at(address: str, folder: Path) -> Iterator[str]:
    """Its URL."""
    server = Server(folder, bind=address, port="6379", protected_mode="no")
    server.start()
    try:
        yield f"redis://{address}:6379"
    finally:
        server.kill()


class Stream:
    """A run whose engines are each on a host of their own, all else beside its server."""

    def __init__(self, folder: Path, url: str, hosts: list[Host]) -> None:
        self.folder, self.bus = folder, Bus.connect(url, "run")
        words = ("run.toml", "--redis", url, "--instance")
        self.processes: dict[str, subprocess.Popen[bytes]] = {
            name: logged(sluice(name, *words, name), folder, name) for name in SERVICES
        }
        for number, host in enumerate(hosts):
            name = f"engine-{number}"
            self.processes[name] = host.start(folder, "inference", *words, name)

    def engine(self, number: int) -> Seen | None:
        """Its newest boot."""
        boots = [s for s in self.bus.snapshot().beats if s.beat.instance == f"engine-{number}"]
        return min(boots, key=lambda seen: seen.age_seconds, default=None)

    def answered(self, number: int) -> float:
        """Members that it has delivered, under all its boots."""
        seen = self.engine(number)
        return seen.beat.totals.get("members", 0.0) if seen else 0.0

    def holds(self, number: int) -> int:
        """Leases."""
        seen = self.engine(number)
        return seen.held if seen else 0

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.bus.close()


WEIGHTS: dict[str, dict[str, Any]] = {
    "files": {"use": "files", "folder": "weights"},
    "redis": {"use": "redis", "whole_every": 4},
}


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[Host]]]:
    if reason := why_not():
        pytest.skip(f"no hosts can be played here: {reason}")
    with network(3) as made:
        yield made


def wait_for(claim: Callable[[], Any], what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.1)


def is_at_work(stream: Stream, number: int) -> bool:
    return stream.answered(number) > 0 and stream.holds(number) > 0


def has_caught_up(now: Seen | None, before: Seen) -> bool:
    """Under a new boot, since its work was others' by then."""
    return bool(
        now and now.beat.boot != before.beat.boot and now.beat.version > before.beat.version
    )


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_the_run_goes_on_without_a_host_and_takes_it_back(
    tmp_path: Path, hosts: tuple[str, list[Host]], weights: dict[str, Any]
) -> None:
    address, (_, cut_off, _) = hosts
    (tmp_path / "weights").mkdir()
    write_run(
        tmp_path,
        prompts=PROMPTS,
        top={"steps": 10**6, "weights": weights},
        groups={"members": MEMBERS, "per_step": 4},
        sampling={"max_tokens": 48, "temperature": 2.0},
        scoring={"scorers": ["benchmarks.rewards:by_hash"]},
        inference={"engine": {"use": "slow_engine:build", "slots": 8, "seconds": 0.03}},
        bus={"lease_seconds": LEASE_SECONDS},
    )
    with (
        server_at(address, tmp_path) as url,
        closing(Stream(tmp_path, url, hosts[1])) as stream,
    ):
        engines = range(3)
        wait_for(lambda: stream.processes and stream.bus.is_open(), "run")
        wait_for(lambda: all(is_at_work(stream, i) for i in engines), "work on all hosts")
        before = stream.bus.state().step
        returned = stream.engine(1)
        cut_off.cut()
        stream.processes["engine-2"].kill()
        gone_at = time.monotonic()

        wait_for(lambda: stream.holds(1) == stream.holds(2) == 0, "take-over of their leases", 30)
        taken_over = time.monotonic() - gone_at
        wait_for(lambda: stream.bus.state().step > before + 1, "step without them")
        time.sleep(max(0.0, gone_at + CUT_SECONDS - time.monotonic()))
        meanwhile = stream.bus.state()
        assert not meanwhile.stop, "the run was too short"
        assert stream.processes["engine-1"].poll() is None

        cut_off.mend()
        back_at = time.monotonic()
        assert returned
        wait_for(lambda: has_caught_up(stream.engine(1), returned), "proof of a newer version", 60)
        answered = stream.answered(1)
        wait_for(lambda: stream.answered(1) > answered, "work of the host that came back", 60)
        back = time.monotonic() - back_at
        print(f"\ntaken over after {taken_over:.1f} s, back at work after {back:.1f} s;", end=" ")
        print(f"steps {before} to {meanwhile.step} without them")

        wait_for(lambda: stream.bus.state().stop, "end of the run", 240)
        is_settled(stream, tmp_path)


def is_settled(stream: Stream, folder: Path) -> None:
    state, ledger = stream.bus.state(), stream.bus.snapshot().ledger
    assert (state.stop, state.eof) == ("done", True)
    assert ledger["trained"].members == PROMPTS * MEMBERS
    assert in_flight(ledger) == 0 and not stream.bus.audit().faults
    trained = recorded(folder / "runs" / "run")
    assert len(trained) == PROMPTS * MEMBERS and set(trained.values()) == {1}
    for name, process in stream.processes.items():
        assert process.wait(30) == (-9 if name == "engine-2" else 0), name

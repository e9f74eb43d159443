"""The whole stream as real processes: it trains, it refuses, and kills neither lose nor repeat."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stream import FAKE, pid_of, read_report, start, write_run

from pipeline.bus.bus import Bus
from pipeline.errors import SluiceError

pytestmark = pytest.mark.slow

# Fates of a member's second copy: its first has another.
COPIES = {"generated", "late", "duplicate", "superseded"}


def wait_for(claim: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := claim()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.05)
    return found


def step_of(bus: Bus) -> int:
    """The run's step, -1 before anybody opened it."""
    try:
        return bus.state().step
    except SluiceError:
        return -1


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run with a slow engine and a small bound."""
    folder = tmp_path_factory.mktemp("stream")
    path = write_run(
        folder,
        prompts=120,
        top={"steps": 12},
        groups={"members": 4, "per_step": 1},
        lag={"max": 1, "unit": "token", "pace": "refuse"},
        inference={"engine": {"use": "slow_engine:build", "slots": 8, "seconds": 0.01}},
    )
    up = start(folder, "up", str(path))
    out, err = up.communicate(timeout=110)
    assert up.returncode == 0, out + err
    return read_report(folder)


def test_a_run_ends_with_a_balanced_report(report: dict[str, Any]) -> None:
    assert report["outcome"] == "done"
    assert report["steps"] == 12
    assert report["balanced"] and report["in_flight_tokens"] == 0
    assert report["ledger"]["trained"]["members"] == report["members_trained"] > 0
    for service in ("inference", "training"):
        shares = [report[f"{kind}_share"][service] for kind in ("busy", "idle", "other")]
        # Of a run of seconds, beside another test; benchmarks/demo.py wants .02 of a whole one.
        assert sum(shares) == pytest.approx(1, abs=0.1)


def test_the_engine_computes_what_the_trainer_does_and_the_rest_is_drift(
    report: dict[str, Any],
) -> None:
    """Of weights that travelled, at its first flip and after ten more."""
    assert report["flips"] > 10 and 0 <= report["canary_gap_nats"] < 1e-4
    assert 0 <= report["engine_k3"] < report["drift_k3"]


def test_a_slow_engine_and_a_small_bound_make_refusals_with_their_reason(
    report: dict[str, Any],
) -> None:
    assert report["ledger"]["stale"]["tokens"] > 0
    assert report["lag_max"] <= 1


def test_killed_engines_and_scorers_lose_no_member_and_train_none_twice(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    prompts, members = 60, 4
    path = write_run(
        tmp_path, prompts=prompts, top={"name": run_name, "steps": 1000}, up={"restarts": 3}, **FAKE
    )
    up = start(tmp_path, "up", str(path), "--redis", server_url)
    bus = Bus.connect(server_url, run_name)
    for service, step in (("inference", 1), ("scoring", 2)):
        wait_for(lambda step=step: step_of(bus) >= step, f"step {step}")
        pid = wait_for(lambda service=service: pid_of(bus, service), f"{service} at work")
        os.kill(pid, signal.SIGKILL)
    out, err = up.communicate(timeout=110)
    assert up.returncode == 0, out + err
    ledger, state = bus.snapshot().ledger, bus.state()
    assert (state.stop, state.eof) == ("done", True)
    fated = sum(sums.members for fate, sums in ledger.items() if fate not in COPIES)
    assert fated == prompts * members
    copies = sum(sums.tokens for fate, sums in ledger.items() if fate != "generated")
    assert copies == ledger["generated"].tokens
    restarts = read_report(tmp_path, run_name)["restarts"]
    assert restarts == {"inference-0": 1, "scoring-0": 1}
    bus.purge()

"""A run that is evaluated while it goes on, by an engine that is killed in the middle of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stream import pid_of, start, write_run

from pipeline import grades
from pipeline.bus.bus import Bus
from pipeline.ledger import Fates

PROMPTS, MEMBERS = 36, 4
HELD_OUT, SAMPLES, EVERY = 5, 2, 3
COPIES = {"generated", "late", "duplicate", "superseded"}
NAMED = re.compile(r"evaluation of version=(\d+) is (?:forgone|left for after the run)")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def go(service: str, url: str, *, instance: str) -> subprocess.Popen[str]:
        words = (service, str(tmp_path / "run.toml"), "--redis", url, "--instance", instance)
        started.append(start(tmp_path, *words))
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.communicate()


def wait_for(claim: Callable[[], Any], what: str, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.01)


def unbalanced(ledger: Fates) -> int:
    """Tokens without a fate."""
    fated = sum(sums.tokens for fate, sums in ledger.items() if fate != "generated")
    return ledger["generated"].tokens - fated


def answers(folder: Path) -> dict[int, list[tuple[int, int, set[int]]]]:
    """Of each version's evaluation: group, member, and the versions that made it."""
    found: dict[int, list[tuple[int, int, set[int]]]] = {}
    for path in folder.glob("answers.*"):
        for group, member, versions in map(json.loads, path.read_text().splitlines()):
            if group.startswith("eval/"):
                _, version, number = group.split("/")
                made = found.setdefault(int(version), [])
                made.append((int(number), member, set(versions)))
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_engine_is_killed_in_an_evaluation_and_each_is_whole_or_forgone_by_name(
    tmp_path: Path,
    server_url: str,
    run_name: str,
    services: Callable[..., subprocess.Popen[str]],
) -> None:
    write_run(
        tmp_path,
        prompts=PROMPTS,
        top={"name": run_name, "steps": 1000},
        inference={"engine": {"use": "noting_engine:build"}},
        scoring={"scorers": ["slow_task:Letters"]},  # tells all members apart
        evaluation={
            "data": {"use": "jsonl", "path": "held.jsonl"}, "every": EVERY, "members": SAMPLES
        },
    )  # fmt: skip
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines()
    (tmp_path / "held.jsonl").write_text("\n".join(lines[:HELD_OUT]) + "\n")
    bus = Bus.connect(server_url, run_name)
    first, training, *others = (
        services(service, server_url, instance=f"{service}-0")
        for service in ("inference", "training", "prompting", "scoring")
    )
    wait_for(bus.is_open, "run")
    wait_for(lambda: bus.snapshot().evaluation.prompts, "evaluation")
    os.kill(pid_of(bus, "inference") or 0, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    bus.bury("inference-0")  # as `sluice up` does
    others.append(services("inference", server_url, instance="inference-1"))
    out, log = training.communicate(timeout=200)
    assert training.returncode == 0, out + log
    for process in others:
        assert process.wait(timeout=30) == 0

    snapshot, folder = bus.snapshot(), tmp_path / "runs" / run_name
    points = {point.version: point for point in grades.read(folder).points}
    named = {int(version) for version in NAMED.findall(log)}
    due = {version for version in range(snapshot.state.version + 1) if version % EVERY == 0}
    assert points.keys() | named == due and not points.keys() & named
    assert 0 in named and len(points) >= 1

    made = answers(tmp_path)
    for version, point in points.items():
        assert {(n, m) for n, m, _ in made[version]} == {
            (n, m) for n in range(2 * HELD_OUT) for m in range(SAMPLES if n < HELD_OUT else 1)
        }
        assert {frozenset(versions) for *_, versions in made[version]} == {frozenset({version})}
        assert (point.prompts, point.members, point.errors) == (HELD_OUT, SAMPLES, 0)
    held_out = snapshot.evaluation.ledger
    whole = HELD_OUT * (SAMPLES + 1) * len(points)
    assert held_out["graded"].members >= whole and unbalanced(held_out) == 0
    assert held_out.keys() <= {"generated", "graded", "cancelled", "superseded", "late"}

    assert (snapshot.state.stop, snapshot.state.eof) == ("done", True)
    fated = sum(sums.members for fate, sums in snapshot.ledger.items() if fate not in COPIES)
    assert fated == PROMPTS * MEMBERS and unbalanced(snapshot.ledger) == 0
    told = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told_of = [point["version"] for line in told for point in line.get("held_out", ())]
    assert len(told_of) == len({*told_of}) and {*told_of} <= points.keys()
    bus.purge()
    bus.close()

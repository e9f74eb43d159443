"""Scoring where much goes wrong at once: slow judges, hung answers, processes that are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from planting import Plant, start_process, wait_until

from pipeline.messages import Beat

Serving = Callable[..., Any]
Popen = subprocess.Popen[bytes]
JUDGE = "strangers:judging"


@contextmanager
def processes(
    plant: Plant, number: int, scoring: object
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Scoring processes, asked to end afterwards, which takes them no time."""
    names = [f"scoring-{n}" for n in range(number)]
    running = [start_process(plant, name, scoring) for name in names]
    try:
        wait_until(lambda: all(addresses(plant).get(name) for name in names))
        yield running
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
        started = time.monotonic()
        for one in running:
            one.wait(20)
        assert time.monotonic() - started < 8, "it is slow to end"


def addresses(plant: Plant) -> dict[str, str]:
    return {seen.beat.instance: seen.beat.http for seen in plant.bus.snapshot().beats}


def test_a_slow_judge_holds_up_no_other_answer_and_no_other_scorer(
    plant: Plant, serving: Serving
) -> None:
    """It needs 2 s for the first four members, which are more than there are workers."""
    slow = plant.group(["slow"] * 4)
    quick = {plant.group(["good"] * 4) for _ in range(10)}
    with serving("exact", JUDGE, workers=1):
        started = time.monotonic()
        groups = plant.ready(10)
        assert time.monotonic() - started < 1.9
        assert {group.prompt.group for group in groups} == quick
        wait_until(lambda: plant.bus.groups.collect(1).groups[0].group == slow)
    assert plant.rewards(plant.bus.groups.fetch([slow])[0]) == dict.fromkeys(range(4), 1.0)


def test_what_a_slow_scorer_has_no_slot_for_is_left_to_another_process(
    plant: Plant, serving: Serving
) -> None:
    for _ in range(4):
        plant.group(["slow"] * 4)
    with serving("exact", {"use": JUDGE, "concurrency": 2}, workers=4) as running:
        wait_until(lambda: running.metrics.gauges()["waiting_members"] >= 2)
        time.sleep(0.5)
        held = running.metrics.gauges()["waiting_members"]
        assert held <= 4, "two with the judge, and two at its door"
        plant.bus.beat(Beat(service="scoring", instance="other", boot="other:1"))
        leases = plant.bus.completions.draw("other:1", held=[], count=99)
        assert len(leases) >= 12


def test_a_quick_async_scorer_is_not_held_back_by_its_concurrency(
    plant: Plant, serving: Serving
) -> None:
    for _ in range(50):
        plant.group(["good"] * 4)
    with serving({"use": JUDGE, "concurrency": 1}, "exact") as running:
        wait_until(lambda: running.metrics.gauges()["waiting_members"] > 0)
        started = time.monotonic()
        plant.ready(50)
        assert time.monotonic() - started < 5


HANGS = {
    "plain": {"scorers": ["strangers:obey"], "timeout_seconds": 1.0, "workers": 4},
    "async": {"scorers": ["strangers:stubborn"], "timeout_seconds": 1.0, "retries": 0},
}


@pytest.mark.parametrize(
    ("kind", "text"), [("plain", "hang"), pytest.param("async", "call", marks=pytest.mark.long)]
)
def test_C049_healthz_answers_within_a_second_whatever_scorers_do(
    plant: Plant, kind: str, text: str
) -> None:
    """Answers that hang on every worker, workers that are replaced, one text of 200,000 letters."""
    plant.group(["so it must be that " * 10_526])
    plant.group([text] * (8 if kind == "plain" else 2))
    slowest, asked = 0.0, 0
    with processes(plant, 1, HANGS[kind]):
        address = addresses(plant)["scoring-0"]
        while (stands := plant.bus.groups.collect(1)).alive > 1 or not stands.groups:
            started = time.monotonic()
            with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as reply:
                assert reply.status == 200
            slowest, asked = max(slowest, time.monotonic() - started), asked + 1
            time.sleep(0.02)
    assert asked > 20 and slowest < 1.0
    (group,) = plant.ready(1)
    assert plant.rewards(group) == {0: 1.0}


def test_it_ends_within_seconds_while_async_scorers_hang(plant: Plant) -> None:
    plant.group(["spin", "uncancelled", "sleep", "good"])
    scoring = {"scorers": ["strangers:stubborn"], "timeout_seconds": 60.0}
    with processes(plant, 1, scoring) as (process,):
        wait_until(lambda: plant.bus.audit().leases)
        time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
    assert not any(child.is_running() for child in children)
    plant.bus.beat(Beat(service="scoring", instance="other", boot="other:1"))
    assert len(plant.bus.completions.draw("other:1", held=[], count=9)) == 4


@pytest.mark.long  # 12 s
def test_C087_killed_at_random_under_load_each_member_is_scored_once(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes, of which one is killed every half second and started again."""
    (tmp_path / "notes").touch()
    monkeypatch.setenv("SLOW_NOTES", str(tmp_path / "notes"))
    groups = {plant.group([f"{g}.{m}" for m in range(4)]) for g in range(50)}
    scoring = {"scorers": [{"use": "strangers:slow", "seconds": 0.05}, JUDGE]}
    dice, names = random.Random(7), count(3)
    with processes(plant, 3, scoring) as running:
        instances = ["scoring-0", "scoring-1", "scoring-2"]
        for _ in range(6):
            time.sleep(0.5)
            victim = dice.randrange(3)
            left = psutil.Process(running[victim].pid).children(recursive=True)
            running[victim].kill()
            running[victim].wait()
            plant.bus.bury(instances[victim])  # as the supervisor does
            instances[victim] = f"scoring-{next(names)}"
            running[victim] = start_process(plant, instances[victim], scoring)
            wait_until(lambda left=left: not any(map(alive, left)))  # type: ignore[misc]
        released = plant.ready(50, seconds=60)
    assert {group.prompt.group for group in released} == groups
    for group in released:
        assert plant.rewards(group) == dict.fromkeys(range(4), 2.0) and not group.failed
    audit = plant.bus.audit()
    assert not audit.faults and not audit.leases
    begun = (tmp_path / "notes").read_text().splitlines()
    assert {*begun} == {f"{g}.{m}" for g in range(50) for m in range(4)}
    assert len(begun) > 200, "what was in hand was graded again: a kill has hit something"


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_fault_leaves_a_letter_with_its_reason(plant: Plant, serving: Serving) -> None:
    plant.group(["raise", "good"])
    with serving("strangers:obey"):
        plant.ready(1)
    (letter,) = plant.bus.dead_letters(9)
    assert (letter.group, letter.member) == ("00000000", "0")
    assert letter.reason == "scorer_error: raised: ValueError: a checker's own"


def test_C053_verdicts_are_counted_by_their_reason(plant: Plant, serving: Serving) -> None:
    plant.group(["We see 42 and so 42", r"<think>so it is \boxed{42}"], reference="42")
    with serving("math") as running:
        (group,) = plant.ready(1)
    assert plant.rewards(group) == {0: 0.0, 1: 0.0}
    totals = running.metrics.totals()
    found = {name: n for name, n in totals.items() if name.startswith('verdicts{scorer="math"')}
    assert found == {'verdicts{scorer="math",reason="no_final_answer"}': 2}


def test_a_reference_nested_too_deep_to_be_sent_costs_its_member_alone(
    plant: Plant, serving: Serving
) -> None:
    """As deep as can be read, but not written: at some depth of the stack one of these is."""
    for depth in (499, *range(960, 996, 4)):
        plant.group(["good"], reference=b"[" * depth + b"]" * depth)
    plant.group(["good"])
    with serving("strangers:obey", JUDGE):
        groups = plant.ready(2)
    assert [plant.rewards(group) for group in groups] == [{0: 2.0}, {0: 2.0}]


def test_it_ends_within_seconds_while_a_scorer_does_not_come_up(plant: Plant) -> None:
    scoring = {"scorers": ["strangers:Late"]}
    process = start_process(plant, "scoring-0", scoring)
    try:
        wait_until(lambda: psutil.Process(process.pid).children(recursive=True))
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert time.monotonic() - started < 8
    finally:
        process.kill()

"""The alarms of `up`: each thing that is wrong is told once, when it is sure, and when it ends."""

from __future__ import annotations

from msgspec.structs import replace
from up_made import BEATS, snapshot

from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.watch import Snapshot, State
from services.up.lookout import START_SECONDS, SURE_SECONDS, Lookout

RUNNING = replace(
    snapshot(),
    state=State(step=1, version=2),
    beats=tuple(replace(seen, age_seconds=0.3) for seen in BEATS if "1:a" not in seen.beat.boot),
)


def aged(service: str, age: float) -> Snapshot:
    beats = [
        replace(seen, age_seconds=age) if seen.beat.service == service else seen
        for seen in RUNNING.beats
    ]
    return replace(RUNNING, beats=tuple(beats))


def lookout() -> tuple[Lookout, list[str]]:
    told: list[str] = []
    bus = Bus(client_of("unix:///nobody.sock"), "run")
    return Lookout(bus, told.append), told


def missing(told: list[str]) -> list[str]:
    return [line for line in told if "no process of" not in line]


def test_an_alarm_is_told_once_and_so_is_its_end() -> None:
    look, told = lookout()
    for at in range(10):
        look.observe(aged("training", 6.0 + at), float(at))
    assert missing(told) == ["alarm: training-0 has been silent for 8 s"]
    look.observe(RUNNING, 10.0)
    assert missing(told)[1:] == ["no longer: training-0 has been silent for 8 s"]


def test_what_ends_before_it_is_sure_is_not_told() -> None:
    look, told = lookout()
    look.observe(aged("training", 90.0), 0.0)
    look.observe(RUNNING, SURE_SECONDS - 0.1)
    look.observe(aged("training", 90.0), SURE_SECONDS + 0.1)
    assert missing(told) == []


def test_a_process_has_some_seconds_to_its_first_beat() -> None:
    look, told = lookout()
    look.observe(RUNNING, 0.0)
    look.observe(RUNNING, START_SECONDS - 0.1)
    assert told == []
    look.observe(RUNNING, START_SECONDS)
    assert "alarm: no process of scoring is alive" in told


def test_of_a_run_that_is_over_nothing_is_told() -> None:
    look, told = lookout()
    over = replace(aged("training", 90.0), state=State(stop="done"))
    for at in range(20):
        look.observe(over, float(at))
    assert told == []
    for at in range(20, 30):
        look.observe(aged("training", 6.0), float(at))
    before = [*told]
    look.observe(over, 30.0)
    assert before and told == before

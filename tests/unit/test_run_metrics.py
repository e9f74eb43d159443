"""What the trainer exports of the run: places, lag on the way, processes, and what tokens cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pipeline.ledger import Fates, Sum
from pipeline.messages import Beat
from pipeline.metrics import Metrics
from pipeline.watch import Places, Seen, Server, Snapshot, State
from services.training.run_metrics import RunNumbers

NOTHING: Counter[int] = Counter()


class Run:
    """The numbers of a run, by their short names, after any number of looks."""

    def __init__(self) -> None:
        self.metrics = Metrics("run")
        self.numbers = RunNumbers(self.metrics, target_steps=90)

    def look(
        self,
        *,
        flight: Counter[int] = NOTHING,
        queue: Counter[int] = NOTHING,
        ledger: Fates | None = None,
        places: Places | None = None,
        **known: Any,
    ) -> dict[str, float]:
        snapshot = Snapshot(
            places=places or Places(),
            ledger=ledger or {},
            **{"state": State(step=10, version=11), "window": 24, "per_step": 8, "lag_max": 2}
            | {"lease_seconds": 15.0, "at_seconds": 1e9}
            | known,
        )
        self.numbers.observe(snapshot, flight, queue)
        return self.metrics.gauges() | self.metrics.totals()


def engine(name: str, *, age: float = 1.0, held: int = 0, **about: Any) -> Seen:
    beat = {"service": "inference", "instance": name, "boot": f"{name}:a", "process": name}
    known = {name: about.pop(name) for name in ("quarantined", "alive") if name in about}
    return Seen(beat=Beat(**beat | about), age_seconds=age, held=held, **known)


def test_where_the_run_stands_and_what_is_allowed() -> None:
    seen = Run().look(server=Server(used_bytes=7, limit_bytes=9), dead_letters=3)
    assert (seen["steps"], seen["target_steps"], seen["version"]) == (10, 90, 11)
    assert (seen["window_groups"], seen["batch_groups"], seen["lag_limit_steps"]) == (24, 8, 2)
    assert (seen["redis_used_bytes"], seen["redis_limit_bytes"]) == (7, 9)
    assert (seen["dead_letters"], seen["looked_timestamp_seconds"]) == (3, 1e9)


def test_groups_are_counted_where_they_are() -> None:
    seen = Run().look(places=Places(prompts=3, open=2, groups=5))
    assert [seen[f'place_groups{{place="{p}"}}'] for p in ("prompts", "open", "groups")] == [
        3,
        2,
        5,
    ]


def test_lag_on_the_way_is_that_of_the_oldest_tokens() -> None:
    run = Run()
    seen = run.look(flight=Counter({10: 3, 8: 1}), queue=Counter({9: 2}))
    assert (seen['lag_mean_steps{way="flight"}'], seen['lag_max_steps{way="flight"}']) == (0.5, 2)
    assert (seen['lag_mean_steps{way="queue"}'], seen['lag_max_steps{way="queue"}']) == (1, 1)
    assert run.look()['lag_max_steps{way="flight"}'] == 0, "nothing is on its way"


def test_processes_are_counted_by_what_their_beats_say_and_leases_by_service() -> None:
    beats = (
        engine("a", held=2),
        engine("b", held=1, quarantined="2 flips went wrong"),
        engine("c", age=9.0, held=4),
        engine("d", waiting_for="ended"),
        engine("a", age=30.0, boot="a:old"),
    )
    seen = Run().look(beats=beats)
    states = {s: seen[f'processes{{service="inference",state="{s}"}}'] for s in ("alive", "silent")}
    assert states == {"alive": 1, "silent": 1}
    assert seen['processes{service="inference",state="quarantined"}'] == 1
    assert seen['processes{service="scoring",state="alive"}'] == 0
    assert (seen['leases{service="inference"}'], seen['leases{service="scoring"}']) == (7, 0)


def ledger(generated: int, **tokens: int) -> Fates:
    return {"generated": Sum(0, generated)} | {f: Sum(t // 10, t) for f, t in tokens.items()}


def test_the_ledger_is_counted_by_fate_and_never_goes_back() -> None:
    run = Run()
    seen = run.look(ledger=ledger(100, trained=60, stale=20))
    assert (seen['fate_tokens{fate="trained"}'], seen['fate_members{fate="stale"}']) == (60, 2)
    assert (seen["generated_tokens"], seen['fate_tokens{fate="late"}']) == (100, 0)
    run.look(ledger=ledger(70, trained=40, stale=20))  # the server was put back
    seen = run.look(ledger=ledger(90, trained=50, stale=20))
    assert (seen['fate_tokens{fate="trained"}'], seen["generated_tokens"]) == (70, 120)


def test_a_token_costs_what_its_forward_passes_took_on_average_lost_ones_included() -> None:
    run = Run()
    gpus = {"tokens": 300.0, "lost_tokens": 100.0, 'device_seconds{device="gpu"}': 20.0}
    beats = (engine("a", totals=gpus), engine("b", age=99.0, alive=False, totals=gpus))
    seen = run.look(ledger=ledger(600, trained=400, stale=100), beats=beats)
    assert seen['fate_device_seconds{fate="trained",device="gpu"}'] == pytest.approx(400 * 40 / 800)
    assert seen['fate_device_seconds{fate="stale",device="gpu"}'] == pytest.approx(5)
    assert seen['fate_device_seconds{fate="stale",device="core"}'] == 0


@pytest.mark.parametrize(
    ("generated", "trained", "alive", "off"),
    [(100, 80, 2, 0), (100, 80, 0, 20), (100, 120, 2, 20), (100, 100, 0, 0)],
)
def test_the_ledger_is_off_by_what_nothing_alive_explains(
    generated: int, trained: int, alive: int, off: int
) -> None:
    places = Places(prompts=alive)
    seen = Run().look(ledger=ledger(generated, trained=trained), places=places)
    assert seen["unbalanced_tokens"] == off
    assert seen["in_flight_tokens"] == generated - trained

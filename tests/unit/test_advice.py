"""How to split the machines, from two looks whose numbers can be checked by hand."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from msgspec.structs import replace

from pipeline.messages import Beat
from pipeline.watch import Advice, Places, Seen, Snapshot, State, advise, beginning
from pipeline.watch.advice import UNITS


def _process(instance: str, amount: float, idle: float, *, wall: float = 100.0) -> Seen:
    """What it made, and for how many of its seconds it was idle."""
    service = instance.partition("-")[0]
    totals = {
        UNITS[service]: amount,
        "wall_seconds": wall,
        'loop_seconds{activity="idle"}': idle,
    }
    beat = Beat(service=service, instance=instance, boot=f"{instance}:a", totals=totals)
    return Seen(beat=beat, age_seconds=0.5)


def _look(*beats: Seen, step: int) -> Snapshot:
    return Snapshot(
        state=State(step=step),
        places=Places(),
        ledger={},
        window=12,
        per_step=4,
        lag_max=2,
        lease_seconds=15,
        beats=beats,
    )


TRAINER = _process("training-0", 9800, 2)
ENGINES = (_process("inference-0", 6000, 60), _process("inference-1", 4000, 60))
SCORER = _process("scoring-0", 200, 95)
PROMPTER = _process("prompting-0", 25, 99)
RUN = _look(PROMPTER, *ENGINES, SCORER, TRAINER, step=25)


def _advice(*beats: Seen) -> Advice:
    now = _look(*beats, step=25)
    advice = advise(beginning(now), now)
    assert advice is not None
    return advice


def test_a_rate_is_what_one_process_makes_in_a_second_at_work() -> None:
    rates = _advice(*RUN.beats).rates
    assert rates == {
        "prompting": 25.0,
        "inference": 10000 / 80,
        "scoring": 40.0,
        "training": 100.0,
    }


def test_the_bottleneck_is_who_is_at_work_all_the_time() -> None:
    advice = _advice(*RUN.beats)
    assert advice.shares == pytest.approx(
        {"prompting": 0.01, "inference": 0.4, "scoring": 0.05, "training": 0.98}
    )
    assert advice.bottleneck == "training"
    assert advice.counts == {"prompting": 1, "inference": 2, "scoring": 1, "training": 1}


def test_one_more_of_the_bottleneck_takes_its_part_of_the_time_off() -> None:
    """Half of 98 %: what took 1 takes 0.51, and inference needs 0.40."""
    gains = _advice(*RUN.beats).gains
    assert gains["training"] == pytest.approx(1 / 0.51 - 1)
    assert gains["inference"] == pytest.approx(1 / 0.98 - 1)


def test_it_brings_no_more_than_the_next_bottleneck_lets_through() -> None:
    engines = [_process(f"inference-{n}", 5000, 20) for n in range(2)]
    gains = _advice(*engines, TRAINER).gains
    assert gains["training"] == pytest.approx(1 / 0.8 - 1)


def test_a_third_engine_brings_half_as_much_again_at_most() -> None:
    engines = [_process(f"inference-{n}", 5000, 0) for n in range(2)]
    advice = _advice(*engines, _process("training-0", 9800, 70))
    assert advice.bottleneck == "inference"
    assert advice.gains["inference"] == pytest.approx(0.5)


def test_where_nobody_is_at_work_all_the_time_the_window_is_the_bottleneck() -> None:
    """In turns, half of the time each: a second engine would save a quarter of it."""
    advice = _advice(_process("inference-0", 5000, 50), _process("training-0", 9800, 50))
    assert advice.bottleneck == "window"
    assert advice.gains == pytest.approx({"inference": 1 / 3, "training": 1 / 3})


def test_a_service_that_keeps_up_with_one_less_has_one_to_spare() -> None:
    assert _advice(*RUN.beats).spare == ["inference"]
    busy = [_process(f"inference-{n}", 5000, 40) for n in range(2)]
    assert _advice(*busy, TRAINER).spare == []
    assert _advice(ENGINES[0], TRAINER).spare == []


def test_only_what_lies_between_the_looks_counts() -> None:
    later = _look(
        _process("inference-0", 7000, 60, wall=110),
        _process("inference-2", 500, 5, wall=10),
        ENGINES[1],
        _process("training-0", 9900, 11, wall=110),
        step=28,
    )
    advice = advise(RUN, later)
    assert advice is not None
    assert advice.rates["training"] == pytest.approx(100.0)
    assert advice.shares == pytest.approx({"inference": 0.75, "training": 0.1})
    assert advice.rates["inference"] == pytest.approx(100.0)
    assert advice.counts["inference"] == 3


@pytest.mark.parametrize(
    "later",
    [
        replace(RUN, state=State(step=2)),
        replace(RUN, beats=(*ENGINES, SCORER)),
        replace(RUN, beats=(TRAINER, SCORER)),
        replace(RUN, beats=(_process("inference-0", 9, 0, wall=4.0), TRAINER)),
    ],
    ids=["two steps", "no trainer", "no engine", "four seconds"],
)
def test_before_there_is_enough_nothing_is_said(later: Snapshot) -> None:
    assert advise(beginning(later), later) is None


def test_two_looks_at_the_same_moment_say_nothing() -> None:
    assert advise(RUN, RUN) is None


def test_the_dead_are_counted_for_what_they_did_and_not_among_those_that_live() -> None:
    dead = replace(ENGINES[1], alive=False)
    advice = _advice(ENGINES[0], dead, TRAINER)
    assert advice.counts["inference"] == 1
    assert advice.rates["inference"] == pytest.approx(10000 / 80)


def test_it_says_so_in_words() -> None:
    assert _advice(*RUN.beats).sentences() == [
        "one process at work makes: prompting 25 groups/s, inference 125 tokens/s, "
        "scoring 40 members/s, training 100 tokens/s",
        "the bottleneck is training; at work: prompting 1%, inference 40%, scoring 5%, "
        "training 98% of the time",
        "one more would bring: training up to 96%, inference nothing, scoring nothing, "
        "prompting nothing",
        "inference would keep up with 1 of its 2",
    ]
    turns = _advice(_process("inference-0", 5000, 50), _process("training-0", 9800, 50))
    assert turns.sentences()[1] == (
        "none is at work all the time, so the window holds them back: inference 50%, training 50%"
    )


def test_what_one_more_brings_is_a_bound_in_streams_that_are_simulated() -> None:
    rng = random.Random(0)
    for seed in range(25):
        counts = [rng.randint(1, 3), rng.randint(1, 2), 1]
        means = [count * rng.uniform(0.2, 2.0) for count in counts]
        places = 6 + rng.randint(0, 10)
        before, shares = _simulated(counts, means, places, seed=seed)
        names = ("inference", "scoring", "training")
        now = _look(
            *(
                _process(f"{name}-{n}", 1.0, 100 * (1 - share))
                for name, count, share in zip(names, counts, shares, strict=True)
                for n in range(count)
            ),
            step=25,
        )
        advice = advise(beginning(now), now)
        assert advice is not None
        for stage, name in enumerate(names):
            more = [count + (place == stage) for place, count in enumerate(counts)]
            after, _ = _simulated(more, means, places, seed=seed)
            assert after / before - 1 < advice.gains[name] + 0.05, (counts, means, places, name)


def _simulated(
    counts: list[int], means: list[float], places: int, *, seed: int, seconds: float = 1000.0
) -> tuple[float, list[float]]:
    """Groups a second of a ring of stages in which so many groups go round, and how busy each is.

    A stage has so many processes, each of which takes a random time over a group: for a seed it
    is the same for the stage's n-th group, however many processes there are.
    """
    rngs, clock, done = [random.Random(3 * seed + stage) for stage in range(3)], 0.0, 0
    queues, free, busy = [places, 0, 0], [*counts], [0.0, 0.0, 0.0]
    events: list[tuple[float, int]] = []
    while clock < seconds:
        for stage in range(3):
            while free[stage] and queues[stage]:
                queues[stage], free[stage] = queues[stage] - 1, free[stage] - 1
                spent = means[stage] * rngs[stage].uniform(0.5, 1.5)
                busy[stage] += spent
                heapq.heappush(events, (clock + spent, stage))
        clock, stage = heapq.heappop(events)
        free[stage] += 1
        queues[(stage + 1) % 3] += 1
        done += stage == 2
    shares = [min(1.0, spent / clock / count) for spent, count in zip(busy, counts, strict=True)]
    return done / clock, shares


def test_every_number_is_one() -> None:
    advice = _advice(*RUN.beats)
    assert all(
        math.isfinite(value)
        for table in (advice.rates, advice.shares, advice.gains)
        for value in table.values()
    )

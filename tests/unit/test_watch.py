"""A snapshot in words: what is wrong with its parts, and who waits for what."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from watch_made import ALL, look, process

from pipeline.ledger import Sum
from pipeline.watch import Places, Server, Snapshot, State, explain, findings, troubles


def test_where_everybody_works_there_is_nothing_to_say() -> None:
    assert explain(look(*ALL)) == []


def test_who_waits_says_for_what_and_where_that_is() -> None:
    seen = look(
        *ALL[1:3],
        process("prompting-0", "window"),
        process("training-0", "groups"),
        places=Places(prompts=7, open=4, groups=1),
    )
    assert explain(seen) == [
        "prompting waits for window: 12 of 12 places are out",
        "training waits for groups: 7 in generation, 4 in scoring, 1 ready",
    ]


def test_of_a_service_that_waits_in_part_each_process_is_named() -> None:
    seen = look(*ALL, process("inference-1", "weights"))
    assert explain(seen) == ["inference-1 waits for weights"]


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (3, "inference-2 holds 3 leases and has been silent for 41 s"),
        (1, "inference-2 holds 1 lease and has been silent for 41 s"),
        (0, "inference-2 has been silent for 41 s"),
    ],
)
def test_who_is_silent_is_named_with_what_it_holds(held: int, sentence: str) -> None:
    silent = process("inference-2", "prompts", age_seconds=41.2, held=held, alive=False)
    assert explain(look(*ALL, silent)) == [sentence]


def test_a_process_that_came_back_or_said_goodbye_is_not_silent() -> None:
    back = process("inference-0", age_seconds=90, alive=False, boot="inference-0:former")
    ended = process("inference-5", "ended", age_seconds=90, alive=False)
    assert explain(look(*ALL, back, ended)) == []


def test_who_died_long_ago_and_left_nothing_is_forgotten() -> None:
    long_ago = process("inference-7", age_seconds=700, alive=False)
    assert explain(look(*ALL, long_ago)) == []
    (told,) = explain(look(*ALL, msgspec.structs.replace(long_ago, held=1)))
    assert told == "inference-7 holds 1 lease and has been silent for 700 s"


def test_a_service_without_a_process_is_missing() -> None:
    dead = process("scoring-0", age_seconds=20, alive=False)
    seen = look(*ALL[:2], dead, ALL[3])
    assert explain(seen) == [
        "no process of scoring is alive",
        "scoring-0 has been silent for 20 s",
    ]


def test_quarantine_rejection_and_dead_letters_are_said() -> None:
    bad = process(
        "inference-1", quarantined="wrong weights, twice", rejected="version 4: a checksum"
    )
    assert explain(look(*ALL, bad, dead_letters=1)) == [
        "inference-1 is quarantined: wrong weights, twice",
        "inference-1 could not stage version 4: a checksum",
        "1 dead letter to read",
    ]


def test_an_engine_whose_canary_is_near_its_limit_is_said_and_is_no_alarm() -> None:
    def engine(gap: float, **about: str) -> Snapshot:
        gauges = {
            'canary_gap_nats{of="largest"}': gap,
            "canary_limit_nats": 0.001,
            "canary_version": 7.0,
        }
        return look(*ALL, process("inference-1", gauges=gauges, **about))

    off = engine(0.0008)
    assert explain(off) == [
        "inference-1 computes log-probs 0.0008 nats off the trainer's (the canary of version 7),"
        " and is quarantined beyond 0.001"
    ]
    assert troubles(off) == []
    assert explain(engine(0.00075)) == explain(engine(float("nan"))) == explain(look(*ALL))
    why = "2 flips went wrong, the last one: version 7: 0.6 nats off"
    assert explain(engine(0.6, quarantined=why)) == [f"inference-1 is quarantined: {why}"]


def test_a_ledger_that_does_not_balance_is_said_first_even_at_the_end() -> None:
    lost = look(*ALL, ledger={"generated": Sum(2, 10), "trained": Sum(1, 7)})
    assert explain(lost) == [
        "the ledger does not balance: 3 tokens have no fate, and nothing is alive"
    ]
    made = look(*ALL, ledger={"trained": Sum(1, 7)}, state=State(stop="done", reason="10 steps"))
    assert explain(made) == [
        "the run is done: 10 steps",
        "the ledger does not balance: 7 tokens have a fate and were never generated",
    ]


def test_tokens_of_what_is_alive_have_no_fate_yet() -> None:
    flight = look(*ALL, ledger={"generated": Sum(2, 10)}, places=Places(open=1))
    assert explain(flight) == []


def test_a_wait_says_since_when() -> None:
    waits = process("training-0", "groups", waited_seconds=40.9)
    assert explain(look(*ALL[:3], waits)) == [
        "training has waited for groups for 41 s: 0 in generation, 0 in scoring, 0 ready"
    ]


def test_who_is_silent_is_named_before_the_lease_is_over_and_one_late_beat_is_no_silence() -> None:
    late, silent = (process("inference-1", age_seconds=age) for age in (4.5, 5.6))
    assert explain(look(*ALL, late)) == []
    assert troubles(look(*ALL, silent)) == ["inference-1 has been silent for 6 s"]


def test_a_loop_that_hangs_is_named_while_its_process_still_beats() -> None:
    stalled = process("prompting-0", turn_seconds=6.6)
    assert troubles(look(stalled, *ALL[1:])) == ["prompting-0 has made no turn of its loop for 7 s"]


def test_no_disk_is_a_trouble() -> None:
    trainer = process("training-0", gauges={"disk_free_bytes": 12e6})
    assert troubles(look(*ALL[:3], trainer)) == [
        "training-0 writes to a disk that is full: 12 MB are left"
    ]
    for free in (12e9, math.nan):
        trainer = process("training-0", gauges={"disk_free_bytes": free})
        assert troubles(look(*ALL[:3], trainer)) == []


def test_golden_verdicts_that_have_changed_are_a_trouble_until_they_heal() -> None:
    for differ, told in ((2, ["scoring-1 gives 2 golden answers another verdict than expected"]),
                         (0, [])):  # fmt: skip
        scorer = process("scoring-1", gauges={"golden_differences": differ})
        assert troubles(look(*ALL, scorer)) == told


def test_a_scorer_that_fails_on_most_answers_is_a_trouble_also_in_the_shadow() -> None:
    def scorer(faults: int, verdicts: int) -> Any:
        counted = {
            'faults{scorer="mine:raises",reason="raised"}': faults - 1,
            'faults{scorer="mine:raises",reason="timeout"}': 1,
            'faults{scorer="other",reason="other"}': 0,
            'verdicts{scorer="mine:raises",reason="wrong"}': verdicts,
            'verdicts{scorer="exact",reason="right"}': 5000,
        }
        return process("scoring-1", totals=counted)

    assert troubles(look(*ALL, scorer(1536, 0))) == [
        "scoring-1 has no verdict of mine:raises on 1,536 of 1,536 answers, mostly raised: its log"
        " says why"
    ]
    assert troubles(look(*ALL, scorer(40, 60))) == troubles(look(*ALL, scorer(19, 0))) == []


def test_a_server_that_is_full_or_refuses_writes_is_a_trouble() -> None:
    full = Server(used_bytes=76_000_000, limit_bytes=100_000_000)
    sentence = "Redis is full: 76 MB of 100 MB are used, and beyond 75% nothing is admitted"
    assert explain(look(*ALL, server=full)) == [sentence]
    assert troubles(look(*ALL, server=full)) == [], "it may empty itself"
    held_up = process("prompting-0", "memory", waited_seconds=4.0)
    assert troubles(look(held_up, *ALL[1:], server=full)) == [sentence]
    roomy = Server(used_bytes=74_000_000, limit_bytes=100_000_000)
    without_limit = Server(used_bytes=74_000_000)
    assert explain(look(*ALL, server=roomy)) == []
    assert explain(look(*ALL, server=without_limit)) == []
    broken = Server(fault="its append-only file cannot be written")
    assert troubles(look(*ALL, server=broken)) == [
        "Redis refuses writes: its append-only file cannot be written"
    ]


def test_data_at_its_end_is_told_with_what_is_left() -> None:
    state, places = State(eof=True, cursor=40), Places(prompts=2, groups=1)
    (told,) = explain(look(*ALL, state=state, places=places))
    assert told == "the data is at its end after 40 prompts, with 3 groups to go"


def test_a_finding_keeps_its_name_while_its_numbers_change() -> None:
    names = set()
    for age in (6.0, 7.0):
        (found,) = findings(look(*ALL, process("inference-1", age_seconds=age)))
        names.add((found.kind, found.who))
    assert names == {("silent", "inference-1")}

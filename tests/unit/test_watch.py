"""A snapshot in words: who waits for whom, what is wrong, and what would help."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.ledger import Sum
from pipeline.messages import Beat
from pipeline.watch import Places, Seen, Snapshot, State, explain


def _seen(instance: str, waiting_for: str | None = None, **about: object) -> Seen:
    service = instance.partition("-")[0]
    boot = str(about.pop("boot", f"{instance}:a"))
    beat = Beat(service=service, instance=instance, boot=boot, waiting_for=waiting_for)
    return msgspec.structs.replace(Seen(beat=beat, age_seconds=0.4), **about)


def _snapshot(*beats: Seen, **fields: object) -> Snapshot:
    base = Snapshot(
        state=State(),
        places=Places(),
        ledger={},
        window=12,
        per_step=4,
        lag_max=2,
        lease_seconds=15,
        beats=beats,
    )
    return msgspec.structs.replace(base, **fields)


ALL = (_seen("prompting-0"), _seen("inference-0"), _seen("scoring-0"), _seen("training-0"))


def test_where_everybody_works_there_is_nothing_to_say() -> None:
    assert explain(_snapshot(*ALL)) == []


def test_who_waits_says_for_what_and_where_that_is() -> None:
    snapshot = _snapshot(
        *ALL[1:3],
        _seen("prompting-0", "window"),
        _seen("training-0", "groups"),
        places=Places(prompts=7, open=4, groups=1),
    )
    assert explain(snapshot) == [
        "prompting waits for window: 12 of 12 places are out",
        "training waits for groups: 7 in generation, 4 in scoring, 1 ready",
    ]


def test_of_a_service_that_waits_in_part_each_process_is_named() -> None:
    snapshot = _snapshot(*ALL, _seen("inference-1", "weights"))
    assert explain(snapshot) == ["inference-1 waits for weights"]


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (3, "inference-2 holds 3 leases and has been silent for 41 s"),
        (1, "inference-2 holds 1 lease and has been silent for 41 s"),
        (0, "inference-2 has been silent for 41 s"),
    ],
)
def test_who_is_silent_is_named_with_what_it_holds(held: int, sentence: str) -> None:
    silent = _seen("inference-2", "prompts", age_seconds=41.2, held=held, alive=False)
    assert explain(_snapshot(*ALL, silent)) == [sentence]


def test_a_process_that_came_back_or_said_goodbye_is_not_silent() -> None:
    back = _seen("inference-0", age_seconds=90, alive=False, boot="inference-0:former")
    ended = _seen("inference-5", "ended", age_seconds=90, alive=False)
    assert explain(_snapshot(*ALL, back, ended)) == []


def test_a_service_without_a_process_is_missing() -> None:
    dead = _seen("scoring-0", age_seconds=20, alive=False)
    snapshot = _snapshot(*ALL[:2], dead, ALL[3])
    assert explain(snapshot) == [
        "no process of scoring is alive",
        "scoring-0 has been silent for 20 s",
    ]


def test_quarantine_rejection_and_dead_letters_are_said() -> None:
    bad = _seen("inference-1", quarantined="wrong weights, twice", rejected="version 4: a checksum")
    assert explain(_snapshot(*ALL, bad, dead_letters=1)) == [
        "inference-1 is quarantined: wrong weights, twice",
        "inference-1 could not stage version 4: a checksum",
        "1 dead letter to read",
    ]


def test_a_ledger_that_does_not_balance_is_said_first_even_at_the_end() -> None:
    lost = _snapshot(*ALL, ledger={"generated": Sum(2, 10), "trained": Sum(1, 7)})
    assert explain(lost) == [
        "the ledger does not balance: 3 tokens have no fate, and nothing is alive"
    ]
    made = _snapshot(
        *ALL, ledger={"trained": Sum(1, 7)}, state=State(stop="done", reason="10 steps")
    )
    assert explain(made) == [
        "the run is done: 10 steps",
        "the ledger does not balance: 7 tokens have a fate and were never generated",
    ]


def test_tokens_of_what_is_alive_have_no_fate_yet() -> None:
    flight = _snapshot(*ALL, ledger={"generated": Sum(2, 10)}, places=Places(open=1))
    assert explain(flight) == []

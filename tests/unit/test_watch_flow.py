"""What is wrong with a run between its parts: who starves whom, circles, and what runs short."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_made import ALL, INFERENCE, PROMPTING, SCORING, TRAINING, look, process

from pipeline.watch import Places, Seen, Server, State, explain, troubles, waits
from services.inference import metrics as inference
from services.prompting import metrics as prompting
from services.scoring import metrics as scoring
from services.training import metrics as training

IDLE = {
    "prompting": process("prompting-0", "window", waited_seconds=7.0),
    "inference": process("inference-0", "prompts", waited_seconds=7.0),
    "scoring": process("scoring-0", "completions", waited_seconds=7.0),
    "training": process("training-0", "groups", waited_seconds=7.0),
}

WHATS = [None, "model", "scorers", "window", "memory", "prompts", "weights", "fresher weights"]
WHATS += ["the run's end", "completions", "groups", "older groups to be done"]
IDLE_TOO = process("inference-1", "prompts", waited_seconds=7.0)


@pytest.mark.parametrize(
    ("beats", "fields", "starved"),
    [
        pytest.param(
            [INFERENCE, SCORING, IDLE["training"]],
            {"places": Places(groups=1)},
            {"training": "prompting (no process of it is alive)"},
            id="no prompting",
        ),
        pytest.param(
            [process("prompting-0", age_seconds=6), IDLE["inference"], SCORING, IDLE["training"]],
            {"places": Places(open=3)},
            {"inference": "prompting-0 (silent for 6 s)"},
            id="free places",
        ),
        pytest.param(
            [
                IDLE["prompting"],
                process("inference-0", age_seconds=6, held=2),
                IDLE["scoring"],
                IDLE["training"],
            ],
            {"places": Places(prompts=12, started=2)},
            {name: "inference-0 (silent for 6 s)" for name in ("prompting", "scoring", "training")},
            id="dead engine",
        ),
        pytest.param(
            [
                PROMPTING,
                INFERENCE,
                process("scoring-0", "scorers", waited_seconds=6.0),
                IDLE["training"],
            ],
            {"places": Places(open=3)},
            {"training": "the scorers of scoring-0 (no verdict for 6 s)"},
            id="hung scorer",
        ),
        pytest.param(
            [
                IDLE["prompting"],
                process("inference-0", "fresher weights", waited_seconds=6.0),
                IDLE["scoring"],
                process("training-0", age_seconds=6),
            ],
            {"places": Places(groups=12, started=12)},
            {name: "training-0 (silent for 6 s)" for name in ("prompting", "inference", "scoring")},
            id="stopped trainer",
        ),
        pytest.param(
            [
                process("prompting-0", "memory", waited_seconds=6.0),
                IDLE["inference"],
                IDLE["scoring"],
                IDLE["training"],
            ],
            {"server": Server(used_bytes=80_000_000, limit_bytes=100_000_000)},
            {
                name: "Redis (80 MB of 100 MB are used)"
                for name in ("inference", "scoring", "training")
            },
            id="full Redis",
        ),
        pytest.param(
            [
                process("prompting-0", turn_seconds=6.0),
                IDLE["inference"],
                IDLE["scoring"],
                IDLE["training"],
            ],
            {},
            {
                name: "prompting-0 (no turn of its loop for 6 s)"
                for name in ("inference", "scoring", "training")
            },
            id="data set that hangs",
        ),
        pytest.param(
            [PROMPTING, INFERENCE, IDLE["scoring"], IDLE["training"]],
            {"places": Places(prompts=3)},
            {},
            id="an engine at work",
        ),
    ],
)
def test_who_is_starved_hears_by_whom_however_far_away(
    beats: list[Seen], fields: dict[str, object], starved: dict[str, str]
) -> None:
    waits = [s for s in explain(look(*beats, **fields)) if "; starved by " in s]
    assert {s.partition(" ")[0]: s.partition("; starved by ")[2] for s in waits} == starved


def test_of_two_engines_the_one_that_fell_silent_with_work_in_hand_is_to_blame() -> None:
    silent = process("inference-1", age_seconds=6, held=1)
    rest = [IDLE["prompting"], IDLE["inference"], IDLE["scoring"], IDLE["training"]]
    told = explain(look(*rest, silent, places=Places(prompts=12)))
    assert told[-1].endswith("; starved by inference-1 (silent for 6 s)")
    assert "starved" not in " ".join(
        explain(
            look(
                *rest[:1],
                INFERENCE,
                *rest[2:],
                msgspec.structs.replace(silent, held=0),
                places=Places(prompts=12),
            )
        )
    )


def test_who_waits_for_each_other_is_a_circle_and_says_for_what() -> None:
    beats = (
        IDLE["prompting"],
        process("inference-0", "fresher weights", waited_seconds=5.0),
        IDLE["scoring"],
        IDLE["training"],
    )
    told = troubles(look(*beats, places=Places(prompts=12)))
    assert told == [
        "a circle, in which nobody can move: training waits for groups from inference, "
        "inference waits for fresher weights from training"
    ]


@pytest.mark.parametrize(
    "moving",
    [
        process("inference-0"),
        process("inference-0", "fresher weights", waited_seconds=1.0),
        process("inference-0", "model", waited_seconds=60.0),
    ],
    ids=["at work", "only just", "for nobody"],
)
@pytest.mark.parametrize("others", [(), (IDLE_TOO,)], ids=["alone", "beside an idle one"])
def test_where_one_of_them_can_still_move_there_is_no_circle(
    moving: Seen, others: tuple[Seen, ...]
) -> None:
    beats = (IDLE["prompting"], moving, *others, IDLE["scoring"], IDLE["training"])
    assert troubles(look(*beats, places=Places(prompts=12))) == []


@given(
    whats=st.lists(st.sampled_from(WHATS), min_size=8, max_size=8),
    counts=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    eof=st.booleans(),
)
def test_whatever_any_two_of_a_service_wait_for_there_are_words_for_it(
    whats: list[str | None], counts: list[int], eof: bool
) -> None:
    names = [f"{service}-{n}" for service in IDLE for n in range(2)]
    beats = [process(n, what, waited_seconds=7.0) for n, what in zip(names, whats, strict=True)]
    places = Places(prompts=counts[0], open=counts[1], groups=counts[2])
    snapshot = look(*beats, places=places, state=State(eof=eof))
    assert all(explain(snapshot))
    assert set(troubles(snapshot)) <= set(explain(snapshot))


def test_a_long_circle_is_told_from_its_foot_and_those_outside_of_it_are_left_out() -> None:
    beats = tuple(IDLE.values())
    (told,) = troubles(look(*beats, places=Places(open=12)))
    assert told.partition(": ")[2] == (
        "scoring waits for completions from inference, inference waits for prompts from scoring"
    )


def test_the_window_is_too_small_where_all_is_out_and_both_its_ends_wait() -> None:
    sentence = (
        "the window is too small: all 12 places are out while inference-0 idles and training waits "
        "for groups; a larger lag.max widens it"
    )
    beats = [IDLE["prompting"], IDLE["inference"], process("inference-1"), *ALL[2:3]]
    out = {"places": Places(prompts=10, groups=2)}
    assert sentence in explain(look(*beats, IDLE["training"], **out))
    assert sentence not in troubles(look(*beats, IDLE["training"], **out))
    free = {"places": Places(prompts=9, groups=2)}
    assert sentence not in explain(look(*beats, IDLE["training"], **free))
    assert sentence not in explain(look(*beats, TRAINING, **out))
    busy = [IDLE["prompting"], INFERENCE, SCORING, IDLE["training"]]
    assert "too small" not in " ".join(explain(look(*busy, **out)))


def test_training_waits_for_no_groups_where_enough_of_them_are_ready() -> None:
    ready = {"places": Places(prompts=8, groups=4)}
    waits = process("training-0", "groups", waited_seconds=0.5)
    assert explain(look(PROMPTING, INFERENCE, SCORING, waits, **ready)) == []
    few = {"places": Places(prompts=8, groups=3)}
    assert "waits for groups" in explain(look(PROMPTING, INFERENCE, SCORING, waits, **few))[-1]
    held = process("training-0", "older groups to be done", waited_seconds=0.5)
    assert "older groups" in explain(look(PROMPTING, INFERENCE, SCORING, held, **ready))[-1]
    told = explain(look(PROMPTING, INFERENCE, SCORING, IDLE["training"], **ready))[-1]
    assert told.endswith("7 s: 8 in generation, 0 in scoring, 4 ready, enough for a step")


def _scorer(members: float, idle: float) -> Seen:
    spent = {'loop_seconds{activity="idle"}': idle, "wall_seconds": 100.0}
    return process("scoring-0", "scorers", totals={"members": members} | spent)


def test_scoring_is_too_slow_where_completions_pile_up_while_training_waits() -> None:
    beats = [PROMPTING, INFERENCE, _scorer(members=150, idle=50)]
    piled = {"completions": 24, "places": Places(open=3)}
    assert explain(look(*beats, IDLE["training"], **piled))[0] == (
        "scoring is too slow: 24 completions to score at 3 a second are 8 s of work, and training "
        "waits for groups"
    )
    assert "slow" not in " ".join(explain(look(*beats, TRAINING, **piled)))
    few = piled | {"completions": 8}
    assert "slow" not in " ".join(explain(look(*beats, IDLE["training"], **few)))


def test_a_scorer_that_hangs_is_named_and_one_that_judges_is_at_work() -> None:
    hangs = process("scoring-0", "scorers", waited_seconds=6.0, gauges={"waiting_members": 3.0})
    told = explain(look(PROMPTING, INFERENCE, hangs, TRAINING))
    assert told == [
        "the scorers of scoring-0 have judged none of the 3 members that they have for 6 s",
        "scoring has waited for scorers for 6 s",
    ]
    judges = process("scoring-0", "scorers", waited_seconds=2.0)
    assert explain(look(PROMPTING, INFERENCE, judges, TRAINING)) == []


def test_whatever_a_service_says_it_is_idle_for_is_a_wait_that_can_be_followed() -> None:
    known = {value for name, value in vars(waits).items() if name.isupper()}
    said = [*inference.CAUSES, *training.CAUSES, *scoring.CAUSES, *prompting.CAUSES]
    assert said and set(said) <= known
    ends = look(*ALL, places=Places(prompts=1))
    alone = {waits.MEMORY, waits.SCORERS, waits.QUARANTINE}
    names = {value for value in known if isinstance(value, str)} - alone
    assert not [name for name in names if not waits.movers(ends, name)]

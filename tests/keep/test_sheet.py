"""The doctor's sheet, from what was seen to lines: pure."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.ledger import Sum
from pipeline.messages import Beat
from pipeline.watch import Audit, Leases, Letter, Places, Seen, Snapshot, State
from services.keep.sheet import Look, faults, lines


def seen(instance: str, waiting_for: str | None = None, **about: object) -> Seen:
    service = instance.partition("-")[0]
    version = 12 if service == "inference" else -1
    beat = Beat(
        service=service,
        instance=instance,
        boot=f"{instance}:a",
        waiting_for=waiting_for,
        version=version,
    )
    return msgspec.structs.replace(Seen(beat=beat, age_seconds=0.44), **about)


MANNED = tuple(seen(f"{name}-0") for name in ("prompting", "inference", "scoring", "training"))
LEDGER = {"generated": Sum(40, 12345), "stale": Sum(1, 45), "trained": Sum(30, 12000)}

SNAPSHOT = Snapshot(
    state=State(cursor=320, batch=12, step=11, version=13, epoch=2, trainer="t"),
    places=Places(prompts=7, open=4, groups=1, started=6),
    ledger=LEDGER,
    window=12,
    per_step=4,
    lag_max=2,
    lease_seconds=15,
    beats=MANNED,
)
AUDIT = Audit(
    alive=12,
    window=12,
    places=SNAPSHOT.places,
    held=Sum(9, 300),
    exact=True,
    overdue=0,
    oldest_seconds={"prompts": 3.21, "groups": 130},
    leases=(),
    faults=(),
)
LOOK = Look("demo", "redis://host:1", 100, SNAPSHOT, AUDIT, ())


def with_(look: Look = LOOK, **fields: object) -> Look:
    """The look with other fields in its snapshot or its audit."""
    of = {
        name: {k: v for k, v in fields.items() if k in kind.__struct_fields__}
        for name, kind in (("snapshot", Snapshot), ("audit", Audit))
    }
    assert len(of["snapshot"]) + len(of["audit"]) >= len(fields)
    return look._replace(
        snapshot=msgspec.structs.replace(look.snapshot, **of["snapshot"]),
        audit=msgspec.structs.replace(look.audit, **of["audit"]),
    )


def section(look: Look, title: str) -> list[str]:
    """The lines under a title, without their indentation."""
    sheet = lines(look)
    rest = sheet[sheet.index(title) + 1 :]
    end = next((n for n, line in enumerate(rest) if not line.startswith(" ")), len(rest))
    return [line.removeprefix("  ") for line in rest[:end]]


def test_its_first_lines_say_where_the_run_stands() -> None:
    assert lines(LOOK)[:2] == [
        "run demo at redis://host:1: running",
        "  step 11 of 100, batch 12, version 13, epoch 2, data cursor 320",
    ]


def test_a_run_before_its_first_version_and_one_that_is_over_say_so() -> None:
    assert "no version yet" in lines(with_(state=State()))[1]
    over = lines(with_(state=State(stop="done", eof=True, cursor=9)))
    assert over[0].endswith(": done") and over[1].endswith("data cursor 9 (at its end)")
    assert over[1].startswith("  step 0, batch"), "how many it was to make is the file's word only"


def test_a_sound_run_ends_in_that_word() -> None:
    assert faults(LOOK) == []
    assert lines(LOOK)[-1] == "sound: no fault was found"
    assert section(LOOK, "waits") == ["nobody waits"]


def test_who_waits_for_whom_is_what_explain_says() -> None:
    beats = (*MANNED[:3], seen("training-0", "groups"))
    assert section(with_(beats=beats), "waits") == [
        "training waits for groups: 7 in generation, 4 in scoring, 1 ready"
    ]


def test_what_would_help_is_what_advise_says_of_all_of_the_run() -> None:
    assert section(LOOK, "advice") == ["too early to say"]
    spent = {"tokens": 100.0, "wall_seconds": 50.0, 'loop_seconds{activity="idle"}': 25.0}
    beats = tuple(
        msgspec.structs.replace(s, beat=msgspec.structs.replace(s.beat, totals=spent))
        for s in MANNED
        if s.beat.service in ("inference", "training")
    )
    assert section(with_(beats=beats), "advice")[0] == (
        "one process at work makes: inference 4 tokens/s, training 4 tokens/s"
    )


def test_places_are_those_that_the_audit_counted() -> None:
    assert section(LOOK, "places") == [
        "12 of 12 are out, 6 taken by an engine",
        "prompts 7, open 4, groups 1",
        "oldest ticket that nobody took: prompts 3.2 s, groups 2 min",
    ]
    assert section(with_(overdue=2), "places")[-1] == "past their deadline: 2"


def test_leases_name_their_owner_and_how_long_it_has_been_silent() -> None:
    leases = (
        Leases(owner="inference-0:a", prompts=3, completions=0, silent_seconds=0.5, alive=True),
        Leases(owner="inference-1:b", prompts=1200, completions=0, silent_seconds=41, alive=False),
        Leases(owner="pool", prompts=0, completions=2, silent_seconds=None, alive=False),
    )
    assert section(with_(leases=leases), "leases") == [
        "owner          prompts  completions             silent",
        "inference-0:a        3            0              0.5 s",
        "inference-1:b    1,200            0       41.0 s, dead",
        "pool                 0            2  free for the next",
    ]
    assert section(LOOK, "leases") == ["none"]


def test_processes_say_which_version_each_engine_runs() -> None:
    beats = (
        seen("inference-0"),
        seen("inference-1", "weights", held=3),
        seen("scoring-0", "ended", alive=False),
        seen("training-0", alive=False, age_seconds=41),
    )
    assert section(with_(beats=beats), "processes") == [
        "process      version  holds  silent  waits for",
        "inference-0       12      0   0.4 s  (works)",
        "inference-1       12      3   0.4 s  weights",
        "scoring-0          -      0   0.4 s  ended",
        "training-0         -      0  41.0 s  (dead)",
        "newest version: 13",
    ]
    assert section(with_(beats=()), "processes") == ["none has ever beaten"]


def test_the_ledger_lists_every_fate_and_what_has_none() -> None:
    assert section(LOOK, "ledger") == [
        "fate       members  tokens",
        "generated       40  12,345",
        "trained         30  12,000",
        "stale            1      45",
        "in flight              300",
        "the groups alive hold 9 members, 300 tokens",
    ]
    assert section(with_(exact=False), "ledger")[-1].endswith("so they were not compared")


def test_dead_letters_say_what_was_given_up_why_and_how_many_there_are() -> None:
    letters = (
        Letter(
            stream="completions", group="g7", member="3", boot="s:1", reason="no", age_seconds=2
        ),
        Letter(stream="prompts", group="g1", member="", boot="", reason="long", age_seconds=7300),
    )
    look = with_(dead_letters=1004)._replace(letters=letters)
    assert section(look, "dead letters") == [
        "2.0 s ago, completions, group g7 member 3, in the hands of s:1: no",
        "2 h 2 min ago, prompts, group g1: long",
        "and 1,002 before",
    ]
    assert section(LOOK, "dead letters") == ["none"]
    assert faults(look) == [], "work may be given up for good reasons"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"faults": ("group g1 is lost",)}, "group g1 is lost"),
        ({"state": State(stop="failed", reason="no memory")}, "the run failed: no memory"),
        ({"beats": MANNED[:3]}, "no process of training is alive"),
        (
            {"beats": (*MANNED, seen("inference-1", alive=False, held=2, age_seconds=41))},
            "inference-1 holds 2 leases and has been silent for 41 s",
        ),
        (
            {"beats": (*MANNED, seen("inference-1", quarantined="flipped wrong"))},
            "inference-1 is quarantined: flipped wrong",
        ),
        (
            {"beats": (*MANNED, seen("inference-1", rejected="version 3: a: checksum"))},
            "inference-1 could not stage version 3: a: checksum",
        ),
    ],
)
def test_a_fault_is_a_sentence_at_the_end(fields: dict[str, object], sentence: str) -> None:
    look = with_(**fields)
    assert faults(look) == [sentence]
    assert lines(look)[-2:] == ["1 fault", f"  {sentence}"]


def test_a_run_that_is_over_needs_no_processes() -> None:
    assert faults(with_(state=State(stop="done"), beats=())) == []


def test_of_many_faults_the_first_are_shown() -> None:
    look = with_(faults=tuple(f"fault {n}" for n in range(30)))
    assert lines(look)[-22] == "30 faults"
    assert lines(look)[-2:] == ["  fault 19", "  and 10 more"]


def test_no_line_holds_more_than_text() -> None:
    assert not [line for line in lines(LOOK) if "\x1b" in line or "\n" in line]

"""What every engine must do, whatever makes its tokens."""

from __future__ import annotations

import pytest
from engine_models import CONTEXT, VOCABULARY
from engine_work import IN_STEP, Make, by_member, drain, flip_to, logprobs, tokens, versions, work
from msgspec.structs import replace

from pipeline.flaws import flaw
from pipeline.protocols import Engine
from services.inference.engines.members import Refused

NO_END: frozenset[int] = frozenset()


def steps(engine: Engine, count: int) -> None:
    """Steps in which nothing may finish."""
    for _ in range(count):
        assert engine.step() == []


def test_every_token_has_a_log_prob_and_a_place_in_a_span(make: Make) -> None:
    engine = make()
    for group in range(5):
        engine.add(work(f"g{group}", prompt=range(1, 3 + group)))
    done = drain(engine)
    assert len(done) == 20
    for completion in done.values():
        assert completion.tokens == len(logprobs(completion)) == len(versions(completion)) > 0
        assert all(value <= 0 for value in logprobs(completion))
        assert all(0 <= token < VOCABULARY for token in tokens(completion))
        assert {span.boot for span in completion.spans} == {"boot-1"}


def test_C011_a_member_stops_at_either_end_id_and_keeps_it(make: Make) -> None:
    ends = frozenset({4, 9})
    engine = make(end_ids=ends)
    for group in range(8):
        engine.add(work(f"g{group}", max_tokens=200))
    stopped = [c for c in drain(engine).values() if c.finish == "stop"]
    for completion in stopped:
        *before, last = tokens(completion)
        assert last in ends
        assert not ends & set(before)
    assert {tokens(completion)[-1] for completion in stopped} == ends


def test_C005_a_member_without_an_end_has_exactly_max_tokens(make: Make) -> None:
    engine = make(end_ids=NO_END)
    for count in (1, 2, 17):
        engine.add(work(f"g{count}", max_tokens=count))
    for (group, _), completion in drain(engine).items():
        assert completion.finish == "length"
        assert completion.tokens == int(group[1:])


def test_an_end_id_as_the_last_token_allowed_is_a_stop(make: Make) -> None:
    first = {key: tokens(c)[0] for key, c in drain_one_token(make, NO_END).items()}
    ends = frozenset(first.values())
    assert {c.finish for c in drain_one_token(make, ends).values()} == {"stop"}


def drain_one_token(make: Make, ends: frozenset[int]) -> dict:
    engine = make(end_ids=ends)
    engine.add(work(max_tokens=1))
    return drain(engine)


def test_C069_the_members_of_a_group_differ(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work(members=8, seed=7))
    assert len({completion.ids for completion in drain(engine).values()}) == 8


def test_another_group_or_seed_gives_other_tokens(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work("a", seed=1))
    engine.add(work("b", seed=1))
    done = drain(engine)
    other = make(end_ids=NO_END)
    other.add(work("a", seed=2))
    again = drain(other)
    assert len({done["a", 0].ids, done["b", 0].ids, again["a", 0].ids}) == 3


def test_a_members_tokens_do_not_depend_on_its_neighbours(make: Make) -> None:
    alone, crowded = make(), make(slots=5)
    alone.add(work("g3", prompt=(7, 8, 9), todo=(2,)))
    for group in range(6):
        crowded.add(work(f"g{group}", prompt=(7, 8, 9) if group == 3 else range(1, 20 - group)))
    mine, other = drain(alone)["g3", 2], drain(crowded)["g3", 2]
    assert mine.ids == other.ids
    assert logprobs(mine) == pytest.approx(logprobs(other), abs=1e-5)


@IN_STEP
def test_more_members_than_slots_are_all_delivered_once(make: Make) -> None:
    engine = make(slots=3)
    for group in range(6):
        engine.add(work(f"g{group}", prompt=range(1, 2 + group)))
    rows = []
    done = []
    while engine.busy:
        done += engine.step()
        rows.append(engine.last_step.rows)
    assert by_member(done).keys() == {(f"g{g}", m) for g in range(6) for m in range(4)}
    assert max(rows) == 3
    assert sum(rows) == sum(completion.tokens for completion in done)


@IN_STEP
def test_a_parked_member_goes_on_elsewhere_as_if_undisturbed(make: Make) -> None:
    whole, first, second = make(), make(), make(boot="boot-2", slots=3)
    groups = [work(f"g{g}", prompt=range(1, 3 + g), max_tokens=40) for g in range(4)]
    for group in groups:
        whole.add(group)
        first.add(group)
    expected = drain(whole)
    done = by_member(completion for _ in range(9) for completion in first.step())
    parked = first.park()
    assert not first.busy
    assert {prefix.finish for prefix in parked} == {None}
    for group in groups:
        mine = [prefix for prefix in parked if prefix.group == group.prompt.group]
        todo = [prefix.member for prefix in mine]
        second.add(work_like(group, todo, mine))
    resumed = drain(second)
    assert {*done, *resumed} == {*expected}
    for key, completion in (done | resumed).items():
        assert completion.ids == expected[key].ids
        assert completion.finish == expected[key].finish
        assert logprobs(completion) == pytest.approx(logprobs(expected[key]), abs=1e-5)
    for completion in resumed.values():
        assert [(s.boot, s.tokens) for s in completion.spans] == [
            ("boot-1", 9),
            ("boot-2", completion.tokens - 9),
        ]


def work_like(group, todo, prefixes):
    ids = group.prompt
    return type(group)(prompt=ids, todo=tuple(todo), prefixes={p.member: p for p in prefixes})


@IN_STEP
def test_parking_returns_waiting_prefixes_and_nothing_for_members_without_a_token(
    make: Make,
) -> None:
    first = make(end_ids=NO_END)
    first.add(work("old", members=2))
    steps(first, 5)
    prefixes = first.park()
    second = make(end_ids=NO_END, slots=2, boot="boot-2")
    second.add(work("running", members=2))
    second.add(work("old", members=2, prefixes=prefixes))
    second.add(work("new", members=2))
    steps(second, 3)
    parked = by_member(second.park())
    assert {key: prefix.tokens for key, prefix in parked.items()} == {
        ("running", 0): 3,
        ("running", 1): 3,
        ("old", 0): 5,
        ("old", 1): 5,
    }
    assert not second.busy
    assert second.step() == []


TRUNCATED = {"top_p": 0.8, "top_k": 12, "min_p": 0.01, "temperature": 0.9}


@IN_STEP
def test_C002_a_truncated_member_says_from_which_ids_each_token_was_drawn(make: Make) -> None:
    engine = make()
    given = [
        each
        for group in range(4)
        for each in (
            work(f"cut{group}", prompt=range(1, 3 + group), **TRUNCATED),
            work(f"whole{group}", prompt=range(1, 3 + group)),
        )
    ]
    prompts = {each.prompt.group: each.prompt for each in given}
    for each in given:
        engine.add(each)
    done = drain(engine)
    assert len(done) == 32
    for (group, _), completion in done.items():
        assert flaw(completion, prompts[group], VOCABULARY) is None
        assert (completion.kept is not None) == group.startswith("cut")
        assert completion.kept is None or len(completion.kept.counts) == 4 * completion.tokens


@IN_STEP
def test_what_was_kept_goes_on_with_a_parked_member(make: Make) -> None:
    whole, first, second = make(), make(), make(boot="boot-2")
    group = work(members=6, max_tokens=40, **TRUNCATED)
    whole.add(group)
    first.add(group)
    expected = drain(whole)
    done = by_member(completion for _ in range(5) for completion in first.step())
    parked = first.park()
    second.add(work_like(group, [prefix.member for prefix in parked], parked))
    done |= drain(second)
    assert parked and done.keys() == expected.keys()
    for key, completion in done.items():
        assert (completion.ids, completion.kept) == (expected[key].ids, expected[key].kept)
        assert flaw(completion, group.prompt, VOCABULARY) is None


@IN_STEP
def test_a_truncated_prefix_that_does_not_say_what_was_kept_is_refused(make: Make) -> None:
    first, second = make(end_ids=NO_END), make()
    first.add(work(members=1, **TRUNCATED))
    steps(first, 5)
    (prefix,) = first.park()
    assert prefix.kept
    for broken in (None, replace(prefix.kept, counts=prefix.kept.counts[:-4])):
        with pytest.raises(Refused, match="kept_length"):
            second.add(work(members=1, prefixes=[replace(prefix, kept=broken)], **TRUNCATED))
    assert not second.busy


@IN_STEP
def test_a_resumed_prefix_that_is_full_already_ends_by_length(make: Make) -> None:
    first, second = make(end_ids=NO_END), make(end_ids=NO_END, boot="boot-2", max_length=9)
    first.add(work(members=1))
    steps(first, 6)
    (prefix,) = first.park()
    second.add(work(members=1, prefixes=[prefix]))
    completion = drain(second)["g", 0]
    assert (completion.finish, completion.ids, completion.spans) == (
        "length",
        prefix.ids,
        prefix.spans,
    )


@IN_STEP
def test_a_prefix_whose_log_probs_do_not_fit_its_ids_is_refused(make: Make) -> None:
    first, second = make(end_ids=NO_END), make()
    first.add(work(members=1))
    steps(first, 5)
    (prefix,) = first.park()
    for broken in (prefix.logprobs[:-4], prefix.logprobs + b"\0\0\0\0", b""):
        torn = type(prefix)(
            group="g", member=0, ids=prefix.ids, logprobs=broken, spans=prefix.spans
        )
        with pytest.raises(Refused, match="logprob_length"):
            second.add(work(members=1, prefixes=[torn]))
    assert not second.busy


def test_a_dropped_group_is_forgotten_and_the_others_do_not_notice(make: Make) -> None:
    whole, engine = make(slots=9), make(slots=9)
    for group in range(4):
        for each in (whole, engine):
            each.add(work(f"g{group}", prompt=range(1, 4 + group), max_tokens=40))
    expected = drain(whole)
    before = [completion for _ in range(3) for completion in engine.step()]
    engine.drop("g1")
    engine.drop("g3")
    engine.drop("unknown")
    done = by_member([*before, *drain(engine).values()])
    kept = {key for key in expected if key[0] in ("g0", "g2")}
    assert kept <= done.keys()
    for key in kept:
        assert done[key].ids == expected[key].ids
    assert {key[0] for key in done.keys() - kept} <= {c.group for c in before}


@IN_STEP
def test_C030_each_token_is_stamped_with_the_version_that_ran(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work("a", max_tokens=20))
    steps(engine, 10)
    flip_to(engine, 3)
    engine.add(work("b", max_tokens=20))
    done = drain(engine)
    for member in range(4):
        assert versions(done["a", member]) == [0] * 10 + [3] * 10
        assert versions(done["b", member]) == [3] * 20
        assert done["a", member].finish == "length"


@IN_STEP
def test_a_version_that_ran_no_step_has_no_span(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work(max_tokens=6))
    flip_to(engine, 1)
    steps(engine, 2)
    flip_to(engine, 2)
    flip_to(engine, 3)
    for completion in drain(engine).values():
        assert [(s.version, s.tokens) for s in completion.spans] == [(1, 2), (3, 4)]


def test_an_older_version_is_never_adopted(make: Make) -> None:
    engine = make(version=4)
    with pytest.raises(AssertionError):
        flip_to(engine, 3)
    assert engine.version == 4


def test_nothing_may_be_added_before_the_first_version(make: Make) -> None:
    engine = make(version=None)
    assert (engine.version, engine.room(), engine.busy) == (-1, 0, False)
    with pytest.raises(AssertionError):
        engine.add(work())
    assert not engine.busy


def test_C077_a_prompt_that_leaves_no_place_for_an_answer_is_refused(make: Make) -> None:
    engine = make(end_ids=NO_END, max_length=100)
    for length in (100, 101):
        with pytest.raises(Refused, match="prompt_too_long") as caught:
            engine.add(work(prompt=[1] * length))
        assert caught.value.reason == "prompt_too_long"
    assert not engine.busy
    engine.add(work(prompt=[1] * 90, max_tokens=20))
    assert {(c.tokens, c.finish) for c in drain(engine).values()} == {(10, "length")}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"prompt": ()}, "prompt_empty"),
        ({"prompt": (1, VOCABULARY)}, "token_unknown"),
        ({"prompt": (1, -1)}, "token_unknown"),
        ({"top_p": 0.0}, "sampling_unsupported"),
        ({"top_p": 1.1}, "sampling_unsupported"),
        ({"top_k": -1}, "sampling_unsupported"),
        ({"min_p": 1.0}, "sampling_unsupported"),
        ({"min_p": -0.1}, "sampling_unsupported"),
        ({"temperature": -1.0}, "sampling_unsupported"),
        ({"max_tokens": 0}, "sampling_unsupported"),
    ],
)
def test_work_that_cannot_be_done_is_refused_by_name(make: Make, fault: dict, reason: str) -> None:
    engine = make()
    with pytest.raises(Refused) as caught:
        engine.add(work(**fault))
    assert caught.value.reason == reason
    assert not engine.busy


def test_room_is_counted_in_groups_of_the_size_seen_last(make: Make) -> None:
    engine = make(end_ids=NO_END, slots=7)  # too few for a reserve
    assert engine.room() == 1
    engine.add(work("a", members=2))
    assert engine.room() == 3
    engine.add(work("b", members=4))
    assert engine.room() == 1
    engine.add(work("c", members=1))
    assert engine.room() == 0
    engine.drop("b")
    assert engine.room() == 4


@IN_STEP
def test_the_last_step_tells_rows_prefill_and_when_it_ended(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work("a", members=3))
    steps(engine, 1)
    first = engine.last_step
    steps(engine, 1)
    second = engine.last_step
    engine.add(work("b", members=2))
    steps(engine, 1)
    third = engine.last_step
    assert [(s.rows, s.prefill) for s in (first, second, third)] == [
        (3, True),
        (3, False),
        (5, True),
    ]
    assert first.ended < second.ended - second.seconds <= second.ended < third.ended


@IN_STEP
def test_a_new_boot_stands_in_the_spans_from_then_on(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work("a"))
    steps(engine, 2)
    engine.park()
    engine.boot = "boot-2"
    engine.add(work("b"))
    for completion in drain(engine).values():
        assert {span.boot for span in completion.spans} == {"boot-2"}
        assert completion.engine == "boot-2"


def test_a_context_that_is_used_to_the_last_token(make: Make) -> None:
    engine = make(end_ids=NO_END)
    engine.add(work(prompt=[1] * 10, members=1, max_tokens=10_000))
    assert drain(engine)["g", 0].tokens == CONTEXT - 10


@IN_STEP
def test_prefixes_are_what_parking_would_give_and_stop_nothing(make: Make) -> None:
    first, second = make(end_ids=frozenset()), make(end_ids=frozenset())
    for engine in (first, second):
        engine.add(work(members=3, max_tokens=9))
        for _ in range(4):
            engine.step()
    prefixes = first.prefixes()
    assert prefixes == first.prefixes()
    assert by_member(prefixes) == by_member(second.park())
    assert {prefix.tokens for prefix in prefixes} == {4} and first.busy
    assert {completion.tokens for completion in drain(first).values()} == {9}

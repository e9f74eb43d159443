"""Held-out groups beside the window: pinned to one version, counted by themselves, graded once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from acts import TRAINER, Acts, balance, completion, prefix
from msgspec.structs import replace

from pipeline.bus.evaluations import group_name
from pipeline.bus.leases import Lease
from pipeline.errors import SluiceError
from pipeline.ledger import Sum
from pipeline.messages import Prompt, Score, Span, Work

SIZE = 3
Held = list[Lease[Work]]


@pytest.fixture
def acts(start: Callable[..., Acts]) -> Acts:
    acts = start(members=2, window=8)
    acts.engine("e:1"), acts.scorer("s:1"), acts.wake(TRAINER, 60)
    return acts


def prompts(acts: Acts, version: int, first: int = 0, last: int = SIZE) -> list[Prompt]:
    return [
        replace(acts.prompt(n), group=group_name(version, n), seq=n, pin=version, lane="eval")
        for n in range(first, last)
    ]


def admit(acts: Acts, version: int = 0, first: int = 0, last: int = SIZE) -> str:
    held_out = prompts(acts, version, first, last)
    return acts.bus.evaluations.admit(held_out, version=version, size=SIZE, first=first)


def take(acts: Acts, boot: str = "e:1", *, pin: int = 0, version: int = 0, held: Held = []) -> Held:  # noqa: B006
    return acts.bus.prompts.take(
        boot, version=version, held=[h.entry for h in held], count=0, pin=pin, pinned_count=9
    ).leases


def deliver(acts: Acts, lease: Lease[Work], m: int, *spans: Span) -> str:
    return acts.bus.prompts.deliver("e:1", [(lease, completion(lease.group, m, *spans))])[0]


def grade(acts: Acts, outcomes: dict[tuple[str, int], float | None]) -> None:
    for lease in acts.draw("s:1"):
        outcome = outcomes[lease.group, lease.member or 0]
        error = "why" if outcome is None else None
        score = Score(reward=None if error else 0.0, outcome=outcome, error=error)
        assert acts.bus.completions.score("s:1", [(lease, score)]) == ["ok"]


def test_what_was_graded_is_told_by_group_and_member_and_noted_once(acts: Acts) -> None:
    assert admit(acts) == "ok"
    outcomes: dict[tuple[str, int], float | None] = {}
    for lease in take(acts):
        for m in (0, 1):
            outcomes[lease.group, m] = float(m) if lease.group.endswith("0") else 0.25
            assert deliver(acts, lease, m, Span(0, 5, "e:1")) == "ok"
    outcomes["eval/0/2", 1] = None
    assert acts.bus.evaluations.conclude(1, 0) == "open"
    grade(acts, outcomes)
    assert acts.bus.snapshot().evaluation.is_complete
    graded = acts.bus.evaluations.graded()
    assert graded.outcomes == {0: [0.0, 1.0], 1: [0.25, 0.25], 2: [0.25, None]}
    assert graded.boots == ("e:1",)
    ledger = acts.bus.snapshot().evaluation.ledger
    assert ledger == {
        "generated": Sum(6, 30), "graded": Sum(5, 25), "scorer_error": Sum(1, 5),
    }  # fmt: skip
    assert acts.ledger() == {} and acts.ready().alive == 0, "the run's own have no part in it"
    assert [acts.bus.evaluations.conclude(1, 0) for _ in "ab"] == ["ok", "over"]
    assert acts.bus.evaluations.graded().outcomes == {} and admit(acts) == "over"
    assert acts.bus.audit().faults == ()


def test_a_version_is_evaluated_once_and_one_at_a_time(acts: Acts) -> None:
    assert [admit(acts, last=2), admit(acts, last=2)] == ["ok", "ok"], "a repeat"
    assert acts.bus.snapshot().evaluation.alive == 2
    assert [admit(acts, last=1), admit(acts, first=1), admit(acts, version=4)] == [
        "moved", "moved", "busy",
    ]  # fmt: skip
    assert admit(acts, first=2) == "ok"
    acts.bus.evaluations.forgo(1, 0)
    assert admit(acts) == "over" and admit(acts, version=4) == "ok"
    standing = acts.bus.snapshot().evaluation
    assert (standing.version, standing.last, standing.forgone, standing.alive) == (4, 0, 1, 3)


def test_only_who_keeps_the_version_gets_its_groups(acts: Acts) -> None:
    admit(acts)
    acts.announce(1, step=0)
    acts.engine("f:1")
    assert acts.bus.versions.confirm("f:1", 1, "f1") == "ok"
    assert take(acts, "f:1", pin=1, version=1) == [], "it keeps another"
    acts.engine("g:1", version=0)
    assert acts.bus.versions.confirm("f:1", 1, "f1") == "ok"
    with pytest.raises(SluiceError):
        acts.bus.versions.confirm("g:1", 7, "f7")
    assert take(acts, "g:1", pin=7) == [], "it has proven no such version"
    assert len(take(acts, pin=0)) == SIZE


def test_it_is_taken_beside_the_runs_own_prompts(acts: Acts) -> None:
    admit(acts), acts.admit(2)
    taken = acts.bus.prompts.take("e:1", version=0, held=[], count=1, pin=0, pinned_count=2)
    assert [lease.group for lease in taken.leases] == ["g0", "eval/0/0", "eval/0/1"]
    held = [lease.entry for lease in taken.leases]
    again = acts.bus.prompts.take("e:1", version=0, held=held, count=0, pin=0, pinned_count=9)
    assert [lease.group for lease in again.leases] == ["eval/0/2"], "the others are in its hands"


def test_a_member_of_two_versions_is_no_evaluation_of_one(acts: Acts) -> None:
    admit(acts), acts.announce(1, step=0)
    assert acts.bus.versions.confirm("e:1", 1, "f1") == "ok"
    [lease, *_] = take(acts)
    spans = Span(0, 3, "e:1"), Span(1, 2, "e:1")
    assert deliver(acts, lease, 0, *spans) == "unproven"
    assert acts.save("e:1", lease, prefix(lease.group, 0, *spans)) == "unproven"
    assert deliver(acts, lease, 0, Span(0, 5, "e:1")) == "ok"


def test_what_a_dead_engine_saved_goes_on_with_another_that_keeps_the_version(acts: Acts) -> None:
    admit(acts, last=1)
    [lease] = take(acts)
    assert acts.save("e:1", lease, prefix(lease.group, 0, Span(0, 3, "e:1"))) == "ok"
    acts.bury("e:1")
    acts.engine("f:1")
    [again] = take(acts, "f:1")
    assert again.work.prefixes[0].spans == (Span(0, 3, "e:1"),) and again.work.todo == (0, 1)
    done = completion(again.group, 0, Span(0, 3, "e:1"), Span(0, 2, "f:1"))
    assert acts.bus.prompts.deliver("f:1", [(again, done)]) == ["ok"]
    acts.bus.prompts.give_back("f:1", [again])
    assert len(take(acts, "f:1")) == 1, "what is given back is there at once"


def test_a_lost_reply_leaks_no_group(acts: Acts) -> None:
    admit(acts)
    assert len(take(acts)) == SIZE
    assert len(take(acts)) == SIZE, "it held none of them"


def test_an_evaluation_is_over_though_an_engine_never_answers_for_a_member(acts: Acts) -> None:
    admit(acts, last=1)
    [lease] = take(acts)
    deliver(acts, lease, 1, Span(0, 5, "e:1"))
    grade(acts, {(lease.group, 1): 1.0})
    acts.overdue(lease.group)
    assert acts.bus.groups.expire(TRAINER) == 1
    assert acts.bus.evaluations.graded().outcomes == {0: [None, 1.0]}
    assert acts.bus.snapshot().evaluation.ledger["graded"] == Sum(1, 5)


def test_the_end_of_the_run_gives_it_up_and_no_part_is_taken_for_the_whole(acts: Acts) -> None:
    admit(acts)
    [first, second, _] = take(acts)
    for m in (0, 1):
        deliver(acts, first, m, Span(0, 5, "e:1"))
    grade(acts, {(first.group, 0): 1.0, (first.group, 1): 1.0})
    deliver(acts, second, 0, Span(0, 5, "e:1"))
    acts.bus.groups.finish(1, "done", "")
    standing = acts.bus.snapshot().evaluation
    assert (standing.version, standing.last, standing.forgone) == (-1, 0, 1)
    assert standing.alive == 0 and not standing.is_complete
    assert acts.bus.evaluations.graded().outcomes == {}
    assert standing.ledger["cancelled"] == Sum(1, 5) and standing.ledger["graded"] == Sum(2, 10)
    assert deliver(acts, second, 1, Span(0, 5, "e:1")) == "late"
    assert balance(acts.bus.snapshot().evaluation.ledger) == (0, 0) and acts.ledger() == {}
    assert admit(acts, version=4) == "full"


def test_held_out_work_that_kills_its_engines_ends_with_the_third_and_holds_nobody_up(
    acts: Acts,
) -> None:
    """Hands are never empty of the run's own work for long, so it is not kept for empty hands."""
    acts.admit(4)
    admit(acts, last=1)
    for number in range(3):
        boot = acts.engine(f"d{number}:1")
        own, held_out = acts.bus.prompts.take(
            boot, version=0, held=[], count=1, pin=0, pinned_count=1
        ).leases
        assert own.group.startswith("g") and held_out.group == "eval/0/0"
        acts.deliver(boot, own, own.work.todo[0])  # so that no strike is the other's
        acts.bury(boot)
    assert take(acts) == [] and acts.letters()[-1]["reason"].startswith("poison")
    assert acts.bus.evaluations.graded().outcomes == {0: [None, None]}
    assert acts.bus.audit().faults == ()


def test_a_struck_prompt_of_the_run_gets_empty_hands_though_an_evaluation_goes_on(
    acts: Acts,
) -> None:
    acts.admit(1)
    for number in range(2):
        acts.take(acts.engine(f"d{number}:1"))
        acts.bury(f"d{number}:1")
    admit(acts)
    [first] = acts.bus.prompts.take(
        "e:1", version=0, held=[], count=0, pin=0, pinned_count=1
    ).leases
    held = [first.entry]
    ask = acts.bus.prompts.take
    assert ask("e:1", version=0, held=held, count=1, pin=0, pinned_count=9).leases == []
    for m in (0, 1):
        deliver(acts, first, m, Span(0, 5, "e:1"))
    alone = ask("e:1", version=0, held=[], count=1, pin=0, pinned_count=9).leases
    assert [lease.group for lease in alone] == ["g0"]


@pytest.mark.parametrize("outcome", [float("nan"), float("inf"), None])
def test_an_outcome_that_is_no_number_is_no_verdict(acts: Acts, outcome: float | None) -> None:
    admit(acts, last=1)
    [lease] = take(acts)
    for m in (0, 1):
        deliver(acts, lease, m, Span(0, 5, "e:1"))
    for found in acts.draw("s:1"):
        score = Score(reward=outcome if found.member else 1.0, outcome=None)
        assert acts.bus.completions.score("s:1", [(found, score)]) == ["ok"]
    assert acts.bus.evaluations.graded().outcomes == {0: [1.0, None]}


def test_what_an_evaluation_leaves_on_the_server_does_not_grow_with_their_number(
    acts: Acts,
) -> None:
    """All but the tombstones, which expire."""
    known: list[int] = []
    for version in range(3):
        if version:
            acts.announce(version, step=0)
            assert acts.bus.versions.confirm("e:1", version, f"f{version}") == "ok"
        admit(acts, version=version)
        for lease in take(acts, pin=version):
            for m in (0, 1):
                deliver(acts, lease, m, Span(version, 5, "e:1"))
        grade(
            acts, dict.fromkeys(((f"eval/{version}/{n}", m) for n in range(3) for m in (0, 1)), 1)
        )
        assert acts.bus.evaluations.conclude(1, version) == "ok"
        assert not acts.client.exists(acts.keys.outcomes)
        keys = [*acts.client.scan_iter(acts.keys.prefix + "*")]
        stay = [key for key in keys if acts.client.ttl(key) == -1 and b"proof:" not in key]
        known.append(sum(acts.client.memory_usage(key, samples=0) for key in stay))
    assert known[2] - known[1] < 300, "the version and its fingerprint"

"""Group deadlines with k of n: what is released, what is cut, what comes too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acts import TRAINER, Acts, balance, prefix

from pipeline import config
from pipeline.errors import ConfigError
from pipeline.ledger import Sum
from pipeline.messages import Span
from services.process import open_run

MEMBERS = 4


def _expired(acts: Acts) -> int:
    acts.overdue("g0"), acts.wake(TRAINER, 60)
    return acts.bus.groups.expire(TRAINER)


def _group(
    start: Callable[..., Acts], *, enough: int | None, delivered: int, scored: int
) -> tuple[Acts, list[str]]:
    """A group of 4 in the hands of an engine, so many of its members delivered and scored."""
    acts = start(members=MEMBERS, enough=enough)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    for m in range(delivered):
        assert acts.deliver(engine, lease, m) == "ok"
    acts.score(scorer, acts.draw(scorer)[:scored])
    return acts, [engine, scorer]


CASES = [
    (enough, delivered, scored)
    for enough in (2, 3, None)
    for delivered in range(1, MEMBERS + 1)
    for scored in range(min(delivered, MEMBERS - 1) + 1)
]


@pytest.mark.parametrize(("enough", "delivered", "scored"), CASES)
def test_C067_at_its_deadline_a_group_is_released_with_enough_scores_and_ends_as_expired_without(
    start: Callable[..., Acts], enough: int | None, delivered: int, scored: int
) -> None:
    acts, _ = _group(start, enough=enough, delivered=delivered, scored=scored)
    assert _expired(acts) == 1
    assert acts.bus.audit().faults == ()
    generated = {"generated": Sum(delivered, 5 * delivered)}
    if scored < (enough or MEMBERS):
        assert acts.bus.audit().alive == 0
        assert acts.ledger() == generated | {"expired": Sum(delivered, 5 * delivered)}
        return
    [group] = acts.bus.groups.fetch(["g0"])
    assert len(group.members) == scored and all(m.score for m in group.members.values())
    cut = delivered - scored
    assert acts.ledger() == generated | ({"cut": Sum(cut, 5 * cut)} if cut else {})
    acts.bus.groups.commit(
        1, batch=1, changed=True, fates={"g0": {"trained": Sum(scored, 5 * scored)}}
    )
    assert balance(acts.ledger()) == (0, 0)


def test_what_comes_after_the_deadline_is_booked_as_late_and_never_trained(
    start: Callable[..., Acts],
) -> None:
    acts, (engine, scorer) = _group(start, enough=2, delivered=3, scored=2)
    [drawn] = acts.draw(scorer)
    [lease] = acts.take(engine)
    assert lease.work.todo == (3,)
    _expired(acts)
    assert acts.score(scorer, [drawn]) == ["closed"]
    assert acts.deliver(engine, lease, 3, tokens=7) == "late"
    assert acts.save(engine, lease, prefix("g0", 3, Span(0, 9, engine))) == "closed"
    [group] = acts.bus.groups.fetch(["g0"])
    assert sorted(group.members) == [0, 1]
    assert acts.ledger() == {"generated": Sum(4, 22), "cut": Sum(1, 5), "late": Sum(1, 7)}
    assert acts.take(engine) == [] and acts.draw(scorer) == []


def test_a_prefix_of_a_member_that_was_cut_and_a_failed_one_have_their_own_fates(
    start: Callable[..., Acts],
) -> None:
    acts = start(members=MEMBERS, enough=2)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    for m in range(3):
        acts.deliver(engine, lease, m)
    acts.save(engine, lease, prefix("g0", 3, Span(0, 4, engine)))
    first, *rest = acts.draw(scorer)
    acts.score(scorer, [first], error="why")
    acts.score(scorer, rest)
    _expired(acts)
    [group] = acts.bus.groups.fetch(["g0"])
    assert sorted(group.members) == [1, 2] and set(group.failed) == {0}
    fates = {"generated": Sum(3, 19), "scorer_error": Sum(1, 5), "cut": Sum(0, 4)}
    assert acts.ledger() == fates


def test_a_group_with_failed_members_that_is_whole_needs_no_deadline(
    start: Callable[..., Acts],
) -> None:
    acts = start(members=MEMBERS, enough=3)
    engine, scorer = acts.engine("e:1"), acts.scorer("s:1")
    acts.admit(1)
    [lease] = acts.take(engine)
    acts.deliver(engine, lease, 0)
    acts.score(scorer, acts.draw(scorer))
    acts.bus.prompts.fail(engine, lease, "why")
    [group] = acts.bus.groups.fetch(["g0"])
    assert list(group.members) == [0], "whoever trains judges whether one is enough"


def test_a_group_that_is_ready_has_no_deadline_any_more(start: Callable[..., Acts]) -> None:
    acts = start()
    acts.make_ready(1)
    assert acts.client.zcard(acts.keys.due) == 0
    acts.wake(TRAINER, 60)
    assert acts.bus.groups.expire(TRAINER) == 0


def test_the_deadline_counts_from_the_first_delivered_member(start: Callable[..., Acts]) -> None:
    acts, _ = _group(start, enough=2, delivered=1, scored=0)
    first = acts.client.zscore(acts.keys.due, "g0")
    [lease] = acts.take("e:1")
    acts.deliver("e:1", lease, 2)
    assert acts.client.zscore(acts.keys.due, "g0") == first
    seconds, micros = acts.client.time()
    assert 598_000 < first - (seconds * 1000 + micros // 1000) <= 600_000


TOML = """
name = "{name}"
steps = 1
data = "jsonl"
[model]
path = "."
[groups]
members = 4
"""


@pytest.fixture
def toml(tmp_path: Path, run_name: str) -> Iterator[Path]:
    path = tmp_path / "run.toml"
    path.write_text(TOML.format(name=run_name))
    yield path


@pytest.mark.parametrize(("given", "stored"), [([], b"4"), (["groups.enough=3"], b"3")])
def test_the_deadline_and_what_is_enough_come_from_the_run_s_file(
    start: Callable[..., Acts], toml: Path, given: list[str], stored: bytes
) -> None:
    acts = start()
    acts.bus.purge()
    run = config.load(toml, [*given, "groups.deadline_seconds=7.5"])
    open_run(acts.bus, run)
    assert acts.client.hmget(acts.keys.run, "deadline_ms", "enough") == [b"7500", stored]


@pytest.mark.parametrize("enough", [1, 5])
def test_enough_is_a_number_of_members_that_can_be_compared(toml: Path, enough: int) -> None:
    with pytest.raises(ConfigError, match="must lie between 2 and members") as excinfo:
        config.load(toml, [f"groups.enough={enough}"])
    assert "groups" in str(excinfo.value) and "\n" not in str(excinfo.value)

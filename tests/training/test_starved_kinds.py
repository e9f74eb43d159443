"""Whose members are trained less often than they are sampled: what is counted, and for how long."""

import pytest

from services.training.starvation import HALF_LIFE_STEPS, MOST_TASKS, OTHER, Kinds, Starvation


def tasks(**members: int) -> Kinds:
    return Kinds({("task", name): count for name, count in members.items()})


def quotients(seen: Starvation) -> dict[str, float]:
    return {share.name: share.quotient for share in seen.shares()}


def test_what_is_a_half_life_old_counts_half() -> None:
    seen = Starvation(members=1)
    seen.observe(tasks(a=100, b=100), tasks(b=100))
    assert [one.name for one in seen.starved()] == ["a"]
    for _ in range(HALF_LIFE_STEPS - 1):
        seen.observe(Kinds(), Kinds())
    seen.observe(tasks(a=100, b=100), tasks(a=100))
    assert quotients(seen) == pytest.approx({"a": 4 / 3, "b": 2 / 3})
    assert seen.starved() == ()


def test_tasks_beyond_the_first_are_counted_together() -> None:
    seen = Starvation(members=1)
    many = tasks(**{f"t{n}": 100 for n in range(MOST_TASKS + 8)})
    seen.observe(many, many)
    assert quotients(seen) == pytest.approx(dict.fromkeys([*many_names(), OTHER], 1.0))


def many_names() -> list[str]:
    return [f"t{n}" for n in range(MOST_TASKS)]


@pytest.mark.parametrize(
    ("sampled", "trained"),
    [
        (tasks(a=100), tasks(a=50)),  # nothing to compare it with
        (tasks(a=100, b=100), tasks(b=94)),  # 12 groups of 4 would be 48, and 47 are expected
    ],
)
def test_nothing_is_said_of_a_lone_task_or_of_too_few_members(
    sampled: Kinds, trained: Kinds
) -> None:
    seen = Starvation(members=4)
    seen.observe(sampled, trained)
    assert seen.shares() == [] and seen.starved() == ()


def test_the_worst_comes_first_and_lengths_are_apart_from_tasks() -> None:
    seen = Starvation(members=1)
    sampled = tasks(a=100, b=100, c=100) + Kinds({("length", "64"): 150, ("length", "256"): 150})
    trained = tasks(a=30, b=10, c=160) + Kinds({("length", "64"): 100, ("length", "256"): 100})
    seen.observe(sampled, trained)
    assert [(one.by, one.name) for one in seen.starved()] == [("task", "b"), ("task", "a")]
    assert quotients(seen)["64"] == pytest.approx(1.0)

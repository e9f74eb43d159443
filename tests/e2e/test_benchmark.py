"""The bars of the benchmark: each can fail by itself, and a run that clears them all passes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.demo import CONTROLS, bars

GOOD: dict[str, Any] = {
    "reward_first": 0.28,
    "reward_last": 0.95,
    "steps": 60,
    "seconds": 90.0,
    "share_of_members_spanning_versions": 0.2,
    "lag_max": 2.0,
    "lag_limit": 2,
    "balanced": True,
    "busy_share": {"inference": 0.9, "training": 0.6},
    "idle_share": {"inference": 0.01, "training": 0.3},
    "other_share": {"inference": 0.08, "training": 0.09},
}


def fallen(name: str, **changes: Any) -> list[str]:
    return [bar.claim for bar in bars(name, GOOD | changes) if not bar.held]


def test_a_good_run_holds_every_bar() -> None:
    assert fallen("seed_0") == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reward_first", 0.3),
        ("reward_last", 0.89),
        ("steps", 151),
        ("seconds", 180.1),
        ("share_of_members_spanning_versions", 0.14),
        ("lag_max", 3.0),
        ("balanced", False),
        ("idle_share", {"inference": 0.04, "training": 0.3}),
        ("other_share", {"inference": None, "training": 0.09}),
    ],
)
def test_each_bar_falls_by_itself(key: str, value: Any) -> None:
    assert len(fallen("seed_0", **{key: value})) == 1


@pytest.mark.parametrize(
    ("name", "last", "held"),
    [
        ("learning_rate_0", 0.32, True),
        ("learning_rate_0", 0.34, False),
        ("learning_rate_0", 0.22, False),
        ("shuffled_rewards", 0.37, True),
        ("shuffled_rewards", 0.39, False),
        ("shuffled_rewards", 0.0, True),
    ],
)
def test_a_control_must_stay_where_it_was(name: str, last: float, held: bool) -> None:
    assert name in CONTROLS
    assert (fallen(name, reward_last=last) == []) is held


@pytest.mark.parametrize("missing", ["reward_first", "reward_last", "lag_max"])
def test_a_figure_that_is_missing_holds_no_bar(missing: str) -> None:
    assert fallen("seed_0", **{missing: None})

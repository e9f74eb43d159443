"""Field cases of groups and lengths: what a step makes of them."""

from __future__ import annotations

import random

import pytest
from made import build, consider, group, member, rules


def test_C012_an_end_that_is_also_the_padding_is_trained_by_length_and_not_by_value() -> None:
    end = 2
    made = group("g", [member([5, 6, end], 1), member([end], 0)])
    (pack,) = build([consider(made, rules())], rules(), pack_tokens=100).packs
    assert pack.ids.tolist() == [3, 4, 5, 6, end, 3, 4, end]
    assert (pack.weight > 0).tolist() == [False, False, True, True, True, False, False, True]


def test_C065_where_every_group_is_without_signal_there_is_no_step_and_all_is_booked() -> None:
    judged = [
        consider(group(f"g{seq}", [member([5, 6], 0.0)] * 4, seq=seq), rules())
        for seq in range(100)
    ]
    batch = build(judged, rules(), pack_tokens=100)
    assert (batch.packs, batch.tokens) == ((), 0)
    assert {fate for fates in batch.fates.values() for fate in fates} == {"zero_signal"}
    assert sum(fates["zero_signal"].members for fates in batch.fates.values()) == 400


@pytest.mark.parametrize(("members", "share"), [(2, 0.70), (4, 0.45), (8, 0.20), (16, 0.04)])
def test_C070_groups_without_signal_are_as_many_as_chance_says(members: int, share: float) -> None:
    rng, trials = random.Random(70), 1500
    verdicts = [
        consider(
            group("g", [member([5], float(rng.random() < 0.1819)) for _ in range(members)]), rules()
        ).verdict
        for _ in range(trials)
    ]
    assert verdicts.count("zero_signal") / trials == pytest.approx(share, abs=0.03)

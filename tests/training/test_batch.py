import math
import random

import pytest
import torch
from made import Batch, build, consider, group, member, rules

from pipeline.ledger import Sum, total
from pipeline.messages import Group, Member


def advantages(batch: Batch) -> list[list[float]]:
    """Of each sequence of the batch, in order: the advantages of its tokens inside the loss."""
    rows: dict[int, list[float]] = {}
    for pack in batch.packs:
        for number, advantage, weight in zip(
            pack.sequence.tolist(), pack.advantage.tolist(), pack.weight.tolist(), strict=True
        ):
            if weight:
                rows.setdefault(number, []).append(advantage)
    return [rows[number] for number in sorted(rows)]


def build_one(made: Group, **changes: int) -> Batch:
    at = rules(**changes)  # type: ignore[arg-type]
    return build([consider(made, at)], at, pack_tokens=100)


def test_C066_statistics_are_by_group_in_whatever_order_they_come() -> None:
    a = group("a", {m: member([5], r) for m, r in ((2, 0), (0, 1), (1, 1))}, seq=3)
    b = group("b", {m: member([5], r) for m, r in ((1, 0), (3, 1), (2, 0), (0, 0))}, seq=7)
    at = rules()
    for seed in range(6):
        shuffled = [consider(b, at), consider(a, at)]
        random.Random(seed).shuffle(shuffled)
        flat = [row[0] for row in advantages(build(shuffled, at, pack_tokens=5))]
        assert flat == pytest.approx([0.577, 0.577, -1.155, -0.5, -0.5, -0.5, 1.5], abs=1e-3)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_C062_a_member_without_a_reward_is_left_out_and_counted(reward: float | None) -> None:
    made = group("g", [member([5], 1), member([5], 0), member([5, 6], reward), member([5], 1)])
    batch = build_one(made)
    assert [row[0] for row in advantages(batch)] == pytest.approx([0.577, -1.155, 0.577], abs=1e-3)
    assert batch.fates["g"] == {"trained": Sum(3, 3), "scorer_error": Sum(1, 2)}


@pytest.mark.parametrize("members", [1, 4])
def test_C061_a_singleton_and_equal_outcomes_carry_no_signal(members: int) -> None:
    judged = consider(group("g", [member([5, 6], 1.0)] * members), rules())
    assert judged.verdict == "zero_signal"
    assert judged.fates == {"zero_signal": Sum(members, 2 * members)}


def test_C064_signal_is_judged_on_the_outcome_and_not_on_the_shaped_reward() -> None:
    shaped = [member([5], -0.1 * (m + 1), outcome=0.0) for m in range(4)]
    assert consider(group("g", shaped), rules()).verdict == "zero_signal"
    solved = [member([5], 0.0, outcome=float(m)) for m in range(2)]
    assert consider(group("g", solved), rules()).verdict == "keep"


def test_a_refused_member_still_shapes_the_baseline() -> None:
    rewards, versions = (1, 0, 0, 0), (5, 5, 5, 2)
    made = group(
        "g",
        [member([5], r, spans=[(v, 1)]) for r, v in zip(rewards, versions, strict=True)],
    )
    batch = build_one(made)
    assert [row[0] for row in advantages(batch)] == pytest.approx([1.5, -0.5, -0.5], abs=1e-3)
    assert batch.fates["g"] == {"trained": Sum(3, 3), "stale": Sum(1, 1)}


def test_refused_tokens_of_a_trained_member_have_their_own_fate_and_no_member() -> None:
    made = group(
        "g",
        [
            member([5] * 6, 1, spans=[(1, 2), (5, 4)], mask=((1, 4),)),
            member([5] * 3, 0, spans=[(9, 1), (5, 2)]),
            member([5] * 4, 0, spans=[(5, 1), (77, 3)]),
            member([5] * 5, 0, mask=((0, 5),)),
            member([5] * 2, 0, spans=[(2, 1), (1, 1)]),
            member([5] * 3, 0, logprobs=[-1, -1]),
        ],
    )
    expected = {
        "trained": Sum(1, 2),
        "stale": Sum(1, 4),
        "masked": Sum(1, 7),
        "future_version": Sum(1, 3),
        "orphan_version": Sum(1, 4),
        "logprob_length": Sum(1, 3),
    }
    batch = build_one(made)
    assert batch.fates["g"] == expected
    assert batch.tokens == 2


def test_every_token_and_member_of_a_group_has_one_fate() -> None:
    rng = random.Random(11)

    def any_member() -> Member:
        first, second = rng.randint(1, 4), rng.randint(0, 4)
        reward = rng.choice([0.0, 1.0, None])
        spans = [(rng.randint(0, 7), first), (rng.randint(0, 25), second)]
        mask = ((1, 3),) if rng.random() < 0.4 else ()
        return member([5] * (first + second), reward, spans=spans, mask=mask)

    verdicts = set()
    for _ in range(200):
        made = group("g", [any_member() for _ in range(rng.randint(1, 5))])
        judged = consider(made, rules(unit=rng.choice(["sample", "token"])))
        verdicts.add(judged.verdict)
        sums = total([judged.fates]).values()
        assert sum(s.members for s in sums) == len(made.members)
        generated = sum(m.completion.tokens for m in made.members.values())
        assert sum(s.tokens for s in sums) == generated
    assert verdicts == {"keep", "zero_signal", "unusable"}


def test_C033_freshness_is_judged_again_when_the_batch_is_built() -> None:
    made = group("g", [member([5], r, spans=[(5, 1)]) for r in (1, 0)])
    then, now = rules(step=5, lag_max=0), rules(step=6, lag_max=0)
    judged = consider(made, then)
    assert judged.verdict == "keep"
    batch = build([judged], now, pack_tokens=100)
    assert batch.packs == () and batch.tokens == 0
    assert batch.fates == {"g": {"stale": Sum(2, 2)}}


def test_C072_where_all_is_outside_the_loss_there_is_nothing_to_step_on() -> None:
    cut = [member([5] * 3, r, mask=((0, 3),), finish="length") for r in (1, 0, 0, 1)]
    judged = consider(group("g", cut), rules())
    assert judged.verdict == "unusable"
    assert judged.fates == {"masked": Sum(4, 12)}
    batch = build([judged], rules(), pack_tokens=100)
    assert batch.packs == () and batch.tokens == 0
    assert all(math.isfinite(value) for value in batch.statistics.values())


def test_an_empty_batch_can_be_built() -> None:
    assert build([], rules(), pack_tokens=9).packs == ()


def test_a_pack_says_of_each_token_what_is_needed_and_weighs_the_step_once() -> None:
    made = group(
        "g",
        [
            member([7, 8], 1, logprobs=[-1, -2], spans=[(3, 1), (5, 1)]),
            member([9], 0, logprobs=[-3]),
        ],
        prompt=[3, 4],
        temperature=0.5,
    )
    (pack,) = build_one(made).packs
    assert pack.ids.tolist() == [3, 4, 7, 8, 3, 4, 9]
    assert pack.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert pack.sequence.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert pack.temperature.tolist() == [0.5] * 7
    assert pack.behaviour.tolist() == [0, 0, -1, -2, 0, 0, -3]
    assert pack.weight.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 0, 0, 1 / 3])
    assert pack.lag.tolist() == [0, 0, 2, 0, 0, 0, 0]
    assert pack.advantage.tolist() == pytest.approx([0, 0, 0.7071, 0.7071, 0, 0, -0.7071], abs=1e-4)
    integer, real = [torch.int64], [torch.float32]
    first, others = integer * 3 + real * 4 + integer * 3, real + integer + real * 3
    assert [column.dtype for column in pack] == first + others + integer + real * 2


def test_the_batch_is_the_same_whatever_order_groups_arrive_in() -> None:
    at = rules()
    made = [
        group(f"g{n}", [member([5 + m] * (n + 1), m % 2) for m in range(3)], seq=9 - n)
        for n in range(4)
    ]
    judged = [consider(each, at) for each in made]
    one = build(judged, at, pack_tokens=12)
    other = build(judged[::-1], at, pack_tokens=12)
    assert len(one.packs) > 1
    for mine, yours in zip(one.packs, other.packs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
    assert list(one.fates) == ["g3", "g2", "g1", "g0"]


def test_what_is_told_of_a_batch() -> None:
    made = group("g", [member([5, 6, 7], 0.5, outcome=1, spans=[(4, 1), (5, 2)])])
    made.members[1] = member([5], 0, finish="length")
    assert build_one(made).statistics == {
        "groups": 1,
        "members": 2,
        "members_spanning": 1,
        "reward_mean": 0.25,
        "completion_tokens_mean": 2,
        "truncated_share": 0.5,
    }


def test_a_completion_without_a_prompt_is_refused() -> None:
    judged = consider(group("g", [member([5], 1), member([5], 0)], prompt=[]), rules())
    assert judged.verdict == "unusable" and judged.fates == {"empty_prompt": Sum(2, 2)}


def test_a_token_has_its_members_outcome_and_the_number_of_its_turn() -> None:
    """The reward may be shaped. Lag splits no turn; the two tokens that a tool wrote end one."""
    first = member([5] * 6, 0.2, outcome=1.0, spans=[(3, 1), (5, 5)], mask=((2, 4),))
    judged = consider(group("g", [first, member([9], -0.5)]), rules())
    (pack,) = build([judged], rules(), pack_tokens=99).packs
    assert pack.score.tolist() == [1.0] * 8 + [-0.5] * 3
    inside = (pack.weight > 0) & (pack.sequence == 0)
    assert pack.segment[inside].tolist() == [0, 0, 1, 1]
    assert (pack.segment.diff()[pack.sequence.diff() == 0] >= 0).all()

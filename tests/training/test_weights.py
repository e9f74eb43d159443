"""What tokens weigh, what becomes of truncated members, and of groups without a signal."""

from typing import Any

import pytest
import torch
from made import Batch, build, consider, group, member, rules
from msgspec.structs import replace

from pipeline.ledger import Sum
from pipeline.messages import Group, Sampling
from pipeline.protocols import Answer
from services.scoring.scorers.text.overlong import overlong
from services.training.advantages import dr_grpo
from services.training.considered import Considered, Rules
from services.training.weights import Treatment


def treated(**changes: Any) -> Rules:
    return rules()._replace(treatment=Treatment(**changes), advantage=dr_grpo)


def judged(made: Group, **changes: Any) -> Considered:
    return consider(made, treated(**changes))


def built(*groups: Group, pack_tokens: int = 99, **changes: Any) -> Batch:
    at = treated(**changes)
    return build([consider(one, at) for one in groups], at, pack_tokens=pack_tokens)


def two_groups(max_tokens: int = 10) -> list[Group]:
    """Of lengths 4 and 2, of which one is stale, and 3; of the second one a member is missing."""
    a = group("a", [member([5] * 4, 1), member([5, 6], 0, spans=[(1, 1), (5, 1)])], seq=0)
    b = group("b", {0: member([5] * 3, 1), 2: member([5], None), 3: member([5], 0)}, seq=1)
    sampling = Sampling(max_tokens=max_tokens)
    return [
        replace(a, prompt=replace(a.prompt, sampling=sampling)),
        replace(b, prompt=replace(b.prompt, sampling=sampling, members=4)),
    ]


EXPECTED = {
    "token": [1 / 9] * 9,
    "sequence": [1 / 16] * 4 + [1 / 4] + [1 / 12] * 3 + [1 / 4],
    "constant": [1 / (2 * 10 + 4 * 10)] * 9,
}


@pytest.mark.parametrize("pack_tokens", [1, 99])
@pytest.mark.parametrize("aggregation", EXPECTED)
def test_C071_a_token_weighs_the_same_however_the_step_is_packed(
    aggregation: str, pack_tokens: int
) -> None:
    packs = built(*two_groups(), aggregation=aggregation, pack_tokens=pack_tokens).packs
    assert (len(packs) > 1) == (pack_tokens == 1)
    got = {}
    for pack in packs:
        for number in sorted({*pack.sequence.tolist()}):
            mine = (pack.sequence == number) & (pack.weight > 0)
            got[number] = pack.weight[mine].tolist()
    weights = [weight for number in sorted(got) for weight in got[number]]
    assert weights == pytest.approx(EXPECTED[aggregation])


def cut(rewards: tuple[float, ...]) -> Group:
    """The last member was cut off, of 5 tokens; the others have 2."""
    *whole, last = rewards
    made = [member([5, 6], r) for r in whole]
    return group("g", [*made, member([5] * 5, last, finish="length")])


def advantages(batch: Batch) -> list[float]:
    (pack,) = batch.packs
    firsts = [(pack.sequence == n).nonzero()[-1] for n in sorted({*pack.sequence.tolist()})]
    return [float(pack.advantage[at]) for at in firsts]


def test_C074_a_truncated_member_is_kept_as_graded_or_worth_0_which_moves_the_mean() -> None:
    kept = built(cut((1, 0, 1)), truncated="keep")
    assert advantages(kept) == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    zero = built(cut((1, 0, 1)), truncated="zero")
    assert advantages(zero) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert kept.tokens == zero.tokens == 9


def test_an_outcome_is_zeroed_with_its_reward_so_that_there_is_a_signal() -> None:
    assert judged(cut((1, 1, 1)), truncated="keep").verdict == "zero_signal"
    assert judged(cut((1, 1, 1)), truncated="zero").verdict == "keep"


def test_a_fault_is_no_reward_of_0_even_of_a_truncated_member() -> None:
    made = cut((1, 0, 1))
    made.members[2] = member([5], None, finish="length")
    assert list(judged(made, truncated="zero").rewards) == [0, 1]


def test_C071_a_masked_truncated_member_is_in_the_mean_and_not_in_the_denominator() -> None:
    batch = built(cut((1, 0, 1)), truncated="mask")
    assert advantages(batch) == pytest.approx([1 / 3, -2 / 3])
    assert batch.tokens == 4 and batch.packs[0].weight.sum() == pytest.approx(1)
    assert batch.fates["g"] == {"trained": Sum(2, 4), "masked": Sum(1, 5)}


def test_C072_where_all_are_truncated_and_masked_there_is_no_step() -> None:
    all_cut = group("g", [member([5] * 3, r, finish="length") for r in (1, 0)])
    batch = built(all_cut, truncated="mask")
    assert batch.packs == () and batch.tokens == 0
    assert batch.fates["g"] == {"masked": Sum(2, 6)}


def test_C064_a_group_without_signal_may_be_kept_and_counts_its_tokens() -> None:
    alike = group("g", [member([5] * 3, -0.1 * m, outcome=0.0) for m in range(2)], seq=1)
    signal = group("h", [member([5], r) for r in (1, 0)], seq=2)
    assert judged(alike).verdict == "zero_signal"
    kept = built(alike, signal, zero_signal="keep")
    assert kept.tokens == 8 and kept.fates["g"] == {"trained": Sum(2, 6)}
    (pack,) = kept.packs
    assert pack.weight[pack.weight > 0].tolist() == pytest.approx([1 / 8] * 8)
    assert pack.advantage.abs().max() > 0.04, "what shaped the reward is learnt from, then"


def test_a_stale_group_could_have_taught_if_its_outcomes_differ_or_need_not() -> None:
    alike, other = (
        group("g", [member([5], reward, spans=[(1, 1)]) for reward in (1.0, last)])
        for last in (1.0, 0.0)
    )
    assert judged(alike).verdict == judged(other).verdict == "unusable"
    assert [judged(one).could_teach for one in (alike, other)] == [False, True]
    assert judged(alike, zero_signal="keep").could_teach


def test_a_token_has_its_members_outcome_and_the_number_of_its_turn() -> None:
    turns = member([5] * 7, 0.25, outcome=1.0, mask=((2, 4), (4, 4), (6, 7)))
    (pack,) = built(group("g", [turns, member([5], 0)])).packs
    assert pack.score.tolist()[2:9] == [1.0] * 7 and pack.score[-1] == 0
    assert pack.segment.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("length", "reward"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (101, -1)]
)
def test_overlong_of_100_with_a_cache_of_20(length: int, reward: float) -> None:
    answer = Answer(text="", prompt="", reference=None, finish="stop", ids=(5,) * length)
    answer = replace(answer, max_tokens=100)
    said = overlong(answer, cache=20)
    assert (said.reward, said.outcome, said.reason == "too_long") == (reward, 0.0, reward < 0)


def test_overlong_needs_to_know_how_long_an_answer_could_be() -> None:
    with pytest.raises(ValueError, match="not known"):
        overlong(Answer(text="", prompt="", reference=None, finish="stop"), cache=20)


def test_weights_are_float32_and_finite_where_nothing_is_inside() -> None:
    batch = built(*two_groups())
    assert all(pack.weight.dtype == torch.float32 for pack in batch.packs)
    assert all(pack.weight.isfinite().all() for pack in batch.packs)

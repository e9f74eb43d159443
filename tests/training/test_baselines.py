"""Advantages against a second implementation in plain Python that shares nothing with the first."""

import math
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import Batch, build, consider, group, member, rules

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.families import ADVANTAGES
from pipeline.ledger import Sum
from pipeline.messages import Group, Prompt
from pipeline.protocols import Graded
from services.training.baselines import Ema

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.5, 1e6]), min_size=1, max_size=6)


def by_hand(name: str, rewards: list[float]) -> list[float]:
    n, mean = len(rewards), fmean(rewards)
    spread = stdev(rewards) if n > 1 else 0.0
    match name:
        case "grpo":
            small = spread < 1e-6 * max(1, abs(mean))
            return [0.0 if small else (r - mean) / (spread + 1e-6) for r in rewards]
        case "dr_grpo":
            return [r - mean for r in rewards]
        case "rloo":
            others = [(sum(rewards) - r) / (n - 1) if n > 1 else r for r in rewards]
            return [r - o for r, o in zip(rewards, others, strict=True)]
        case "max_rl":
            return [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]
        case "none":
            return rewards
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "max_rl", "none"])
@given(rewards=REWARDS)
def test_each_formula_is_that_of_plain_python_to_1e_10(name: str, rewards: list[float]) -> None:
    advantage = plugins.build(ADVANTAGES, name, at="-")
    got = advantage(torch.tensor(rewards, dtype=torch.float64)).tolist()
    assert all(map(math.isfinite, got))
    assert got == pytest.approx(by_hand(name, rewards), rel=1e-10, abs=1e-10 * max(1, *rewards))


def test_max_rl_by_hand_and_where_nothing_was_right() -> None:
    advantage = plugins.build(ADVANTAGES, "max_rl", at="-")
    assert advantage(torch.tensor([1.0, 0, 0, 0])).tolist() == [3, -1, -1, -1]
    assert advantage(torch.tensor([0.0, 0])).tolist() == [0, 0]
    with pytest.raises(ConfigError, match="rewards of 0 or more, and a scorer gave"):
        advantage(torch.tensor([1.0, -0.25]))


def test_rewards_that_an_advantage_refuses_cost_their_group_and_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = rules()._replace(advantage=plugins.build(ADVANTAGES, "max_rl", at="-"))
    refused = consider(group("bad", [member([5, 6], 1.0), member([7], -0.25)]), at)
    kept = consider(group("good", [member([5], 1.0), member([6], 0.0)]), at)
    assert (refused.verdict, kept.verdict) == ("unusable", "keep")
    assert refused.fates == {"scorer_error": Sum(2, 3)}
    assert (refused.rewards, refused.could_teach) == ({}, False)
    assert "group=bad reason=scorer_error objective.advantage = 'max_rl'" in caplog.text


def batch_of(spec: Any, *groups: Group) -> Batch:
    at = rules()._replace(advantage=plugins.build(ADVANTAGES, spec, at="-"))
    return build([consider(one, at) for one in groups], at, pack_tokens=4)


def told(batch: Batch) -> list[float]:
    """The advantage of each member that is trained."""
    rows: dict[int, float] = {}
    for pack in batch.packs:
        for number, a, w in zip(pack.sequence, pack.advantage, pack.weight, strict=True):
            if w:
                rows[int(number)] = float(a)
    return [rows[number] for number in sorted(rows)]


def test_reinforce_pp_is_scaled_over_the_batch_and_a_refused_member_shapes_it() -> None:
    a = group("a", [member([5], r) for r in (1, 0)], seq=0)
    b = group("b", [member([5], r, spans=[(v, 1)]) for r, v in ((3, 5), (0, 1), (0, 5))], seq=1)
    b.members[3] = member([5, 6], None)
    centred = [0.5, -0.5, 2.0, -1.0, -1.0]
    scale = math.sqrt(sum(x * x for x in centred) / 4) + 1e-6  # their mean is 0
    expected = [x / scale for n, x in enumerate(centred) if n != 3]  # b's second is stale
    assert told(batch_of("reinforce_pp_baseline", b, a)) == pytest.approx(expected, rel=1e-6)


@given(rewards=st.lists(REWARDS, max_size=5))
def test_reinforce_pp_is_that_of_plain_python_and_never_nan(rewards: list[list[float]]) -> None:
    advantage = plugins.build(ADVANTAGES, "reinforce_pp_baseline", at="-")
    values = [advantage(torch.tensor(one, dtype=torch.float64)) for one in rewards]
    got = advantage.over_batch([Graded("", one) for one in values])
    every = [r - fmean(one) for one in rewards for r in one]
    spread = stdev(every) if len(every) > 1 else 0.0
    small = spread < 1e-6
    expected = [0.0 if small else (x - fmean(every)) / (spread + 1e-6) for x in every]
    assert [x for one in got for x in one.tolist()] == pytest.approx(expected, abs=1e-9)


def of_task(name: str, reward: float, *, seq: int, task: str) -> Group:
    made = group(name, [member([5], reward)], seq=seq)
    fields = {key: getattr(made.prompt, key) for key in made.prompt.__struct_fields__}
    return Group(prompt=Prompt(**fields | {"task": task}), start_step=0, members=made.members)


def test_ema_is_the_running_mean_of_a_task_and_trains_groups_of_one() -> None:
    advantage = Ema(decay=0.95)
    at = rules()._replace(advantage=advantage)
    means: dict[str, float] = {}
    for round_, rewards in enumerate([(1, 0, 4), (0, 1, 2), (1, 1, 0)]):
        tasks = ("sum", "sum", "rhyme")
        given_ = [
            of_task(f"{round_}.{n}", reward, seq=n, task=task)
            for n, (reward, task) in enumerate(zip(rewards, tasks, strict=True))
        ]
        batch = build([consider(one, at) for one in given_], at, pack_tokens=99)
        fresh = {"sum": (rewards[0] + rewards[1]) / 2, "rhyme": float(rewards[2])}
        known = fresh | means
        expected = [r - known[task] for r, task in zip(rewards, tasks, strict=True)]
        assert told(batch) == pytest.approx(expected, abs=1e-6)
        again = build([consider(one, at) for one in given_], at, pack_tokens=99)
        assert told(again) == told(batch), "a batch that is built again moves no mean"
        advantage.observe(batch.graded)
        means = {task: 0.95 * known[task] + 0.05 * fresh[task] for task in fresh}
    assert advantage.memory().plain["means"] == pytest.approx(means, abs=1e-12)


def test_what_ema_remembers_goes_on_bit_for_bit() -> None:
    one, other = Ema(), Ema()
    for reward in (0.1, 0.7, 1 / 3):
        one.observe([Graded("t", torch.tensor([reward], dtype=torch.float64))])
    other.recall(one.memory())
    more = [Graded("t", torch.tensor([0.3], dtype=torch.float64))]
    one.observe(more)
    other.observe(more)
    assert one.memory() == other.memory()


def test_without_a_baseline_a_group_of_one_is_trained_and_with_one_it_is_not() -> None:
    alone = group("g", [member([5, 6], 2.0)])
    assert told(batch_of("none", alone)) == [2.0]
    assert batch_of("grpo", alone).tokens == 0

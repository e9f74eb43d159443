import math
from functools import partial

import pytest
import torch
from made import build, consider, group, member, rules

from pipeline.model.packed import Packed
from pipeline.protocols import Loss, Pack
from services.training.corrections import mask_k, tis
from services.training.divergence import k2
from services.training.losses import cispo, dppo_tv, ppo
from services.training.objective import Objective
from services.training.statistics import Statistics

BEHAVIOUR = [-1.0, -2.0, -3.0, -1.0]
GAPS = [0.0, 0.5, -1.0, 2.0]


def packs(size: int) -> list[Pack]:
    """Four tokens of lags 2, 0, 0, 0 in one member, one of lag 1 and gap 0 in the other."""
    first = member([5, 6, 7, 8], 1.0, logprobs=BEHAVIOUR, spans=[(3, 1), (5, 3)])
    second = member([9], 0.0, logprobs=[-1.0], spans=[(4, 1)])
    judged = consider(group("g", [first, second]), rules())
    return list(build([judged], rules(), pack_tokens=size).packs)


def seen(pack: Pack) -> Packed:
    """Log-probs that lie by GAPS off the behaviour; what is outside the loss is far off."""
    logp = torch.full(pack.ids.shape, -500.0)
    inside = pack.weight > 0
    gaps = torch.tensor([gap for gap in GAPS if 8 in pack.ids] + [0.0] * (9 in pack.ids))
    logp[inside] = pack.behaviour[inside] + gaps
    return Packed(logp, torch.where(inside, 1.5, 99.0))


def collect(size: int, loss: Loss = cispo) -> Statistics:
    statistics = Statistics(Objective(loss))
    for pack in packs(size):
        statistics.add(pack, seen(pack))
    return statistics


@pytest.mark.parametrize("size", [1, 100])
def test_figures_are_over_the_tokens_inside_the_loss_of_all_packs(size: int) -> None:
    assert len(packs(size)) == (2 if size == 1 else 1)
    r = [math.exp(gap) for gap in [*GAPS, 0.0]]
    k3 = [x - 1 - gap for x, gap in zip(r, [*GAPS, 0.0], strict=True)]
    summary = collect(size).summary()
    assert summary == pytest.approx(
        {
            "ess": sum(r) ** 2 / (5 * sum(x * x for x in r)),
            "mismatch_k3": sum(k3) / 5,
            "gap_max": 2.0,
            "clipped": 1 / 5,  # e^2 > 5
            "trust_masked": 0.0,
            "clamped": 0.0,
            "entropy": 1.5,
            "kl_term": 0.0,
            "lag_mean": 3 / 5,
            "lag_p95": 2,
            "lag_max": 2,
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("size", [1, 100])
def test_tokens_are_counted_by_their_lag(size: int) -> None:
    assert collect(size).tokens_by_lag() == [(0, 3), (1, 1), (2, 1)]


def test_clipped_tokens_are_found_for_any_loss() -> None:
    """Advantage is positive: ppo clips e^.5 and e^2 above 1.28, and not e^-1."""
    assert collect(100, ppo).summary()["clipped"] == pytest.approx(2 / 5)


def test_on_policy_the_effective_sample_is_whole_and_nothing_is_clipped() -> None:
    statistics = Statistics(Objective(ppo))
    for pack in packs(100):
        statistics.add(pack, Packed(pack.behaviour, torch.zeros(pack.ids.shape)))
    summary = statistics.summary()
    assert summary["ess"] == 1 and summary["clipped"] == 0
    assert summary["mismatch_k3"] == summary["gap_max"] == 0


def test_C102_ratios_that_were_clamped_are_counted_and_all_stays_finite() -> None:
    (pack,) = packs(100)
    logp = torch.where(pack.ids == 9, pack.behaviour - 90, pack.behaviour)
    statistics = Statistics(Objective(cispo))
    statistics.add(pack, Packed(logp, torch.zeros(pack.ids.shape)))
    summary = statistics.summary()
    assert summary["clamped"] == pytest.approx(1 / 5)
    assert summary["gap_max"] == pytest.approx(90)
    assert all(math.isfinite(value) for value in summary.values())


@pytest.mark.parametrize("size", [1, 100])
def test_the_kl_term_is_told_as_it_is_added_and_of_each_lag(size: int) -> None:
    """The reference is the policy that sampled, so that x is GAPS."""
    statistics = Statistics(Objective(cispo, kl=partial(k2, coefficient=0.1)))
    for pack in packs(size):
        statistics.add(pack._replace(reference=pack.behaviour), seen(pack))
    terms = [0.1 * gap * gap / 2 for gap in GAPS]
    assert statistics.summary()["kl_term"] == pytest.approx(sum(terms) / 5)
    assert statistics.by_lag()["0"]["kl_term"] == pytest.approx(sum(terms[1:]) / 3)


def test_C072_a_step_without_tokens_has_finite_figures() -> None:
    assert set(Statistics(Objective(cispo)).summary().values()) == {0.0}


def test_p95_is_the_least_lag_that_95_in_100_do_not_exceed() -> None:
    spans = [(5, 95), (3, 5)]
    made = group("g", [member([5] * 100, 1.0, spans=spans), member([5], 0.0, mask=((0, 1),))])
    (pack,) = build([consider(made, rules())], rules(), pack_tokens=999).packs
    statistics = Statistics(Objective(cispo))
    statistics.add(pack, Packed(pack.behaviour, torch.zeros(pack.ids.shape)))
    assert statistics.summary()["lag_p95"] == 0
    assert statistics.summary()["lag_max"] == 2


@pytest.mark.parametrize("size", [1, 100])
def test_the_figures_of_a_lag_are_over_its_tokens_alone(size: int) -> None:
    """Lag 2 has the gap 0, lag 1 the gap 0, and lag 0 the gaps .5, -1 and 2."""
    by_lag = collect(size).by_lag()
    assert list(by_lag) == ["0", "1", "2"]
    r = [math.exp(gap) for gap in GAPS[1:]]
    assert by_lag["0"]["tokens"] == 3
    assert by_lag["0"]["ess"] == pytest.approx(sum(r) ** 2 / (3 * sum(x * x for x in r)), rel=1e-5)
    assert by_lag["0"]["gap_max"] == pytest.approx(2.0, rel=1e-5)
    assert by_lag["0"]["clipped"] == pytest.approx(1 / 3)
    for lag in "12":
        assert by_lag[lag]["ess"] == pytest.approx(1.0) and by_lag[lag]["gap_max"] < 1e-5


def k3(gap: float) -> float:
    return math.exp(gap) - 1 - gap


def lagging(gaps: dict[int, float]) -> Statistics:
    """One token for each lag, off the behaviour by so much."""
    spans = [(13 - lag, 1) for lag in gaps]
    one = member([5] * len(gaps), 1.0, logprobs=[-1.0] * len(gaps), spans=spans)
    other = member([6], 0.0, mask=((0, 1),))
    given = rules(step=13, lag_max=12)
    (pack,) = build([consider(group("g", [one, other]), given)], given, pack_tokens=99).packs
    logp = pack.behaviour.clone()
    logp[pack.weight > 0] += torch.tensor([*gaps.values()])
    statistics = Statistics(Objective(cispo))
    statistics.add(pack, Packed(logp, torch.zeros(pack.ids.shape)))
    return statistics


def test_the_mismatch_of_engines_and_the_drift_of_the_policy_are_told_apart() -> None:
    """Lag 0 is the engines' alone; what older tokens have beyond that is drift."""
    statistics = lagging({0: 0.1, 1: 0.3, 2: -0.5})
    engine, older = k3(0.1), (k3(0.3) + k3(-0.5)) / 2
    assert statistics.apart() == pytest.approx(
        {"engine_k3": engine, "engine_gap_max": 0.1, "drift_k3": older - engine}, rel=1e-4
    )
    drift = {lag: figures["drift_k3"] for lag, figures in statistics.by_lag().items()}
    wanted = {"0": 0.0, "1": k3(0.3) - engine, "2": k3(-0.5) - engine}
    assert drift == pytest.approx(wanted, rel=1e-3, abs=1e-9)


def test_drift_is_not_below_0_and_is_all_where_no_token_tells_of_the_engines() -> None:
    assert lagging({0: 0.5, 1: 0.1}).apart()["drift_k3"] == 0
    old = lagging({1: 0.3, 5: 0.3}).apart()
    assert old["drift_k3"] == pytest.approx(k3(0.3), rel=1e-4)
    assert math.isnan(old["engine_k3"]) and math.isnan(old["engine_gap_max"])
    fresh = lagging({0: 0.3}).apart()
    assert fresh["engine_k3"] == pytest.approx(k3(0.3), rel=1e-4)
    assert math.isnan(fresh["drift_k3"])


def test_late_lags_share_buckets_and_ranks_add_up() -> None:
    """Of lags 0 to 12, one token each; on two ranks as on one."""
    spans = [(13 - lag, 1) for lag in range(12, -1, -1)]
    one = member([5] * 13, 1.0, logprobs=[-1.0] * 13, spans=spans)
    given = rules(step=13, lag_max=12)
    judged = consider(group("g", [one, member([6], 0.0, spans=[(13, 1)])]), given)
    whole, *ranks = (Statistics(Objective(cispo)) for _ in range(3))
    packs = build([judged], given, pack_tokens=1).packs
    assert len(packs) == 2
    for pack, rank in zip(packs, ranks, strict=True):
        for statistics in (whole, rank):
            statistics.add(pack, Packed(pack.behaviour + 0.1, torch.ones(pack.ids.shape)))
    ranks[0].merge(ranks[1].sums())
    assert ranks[0].by_lag() == whole.by_lag() and ranks[0].summary() == whole.summary()
    tokens = {bucket: figures["tokens"] for bucket, figures in whole.by_lag().items()}
    assert tokens == {"0": 2, "1": 1, "2": 1, "3-4": 2, "5-8": 4, "9+": 4}


def test_what_a_correction_takes_out_is_counted() -> None:
    """Where the gap is 2."""
    mask = partial(mask_k, kind="k1", bound=1.5)
    statistics = Statistics(Objective(ppo, mask, "proximal"))
    for pack in packs(100):
        statistics.add(pack, seen(pack))
    assert statistics.summary()["trust_masked"] == pytest.approx(1 / 5)
    assert statistics.by_lag()["0"]["trust_masked"] == pytest.approx(1 / 3)
    small = Statistics(Objective(ppo, tis, "proximal"))  # a weight of e^-1 is none that is 0
    for pack in packs(100):
        small.add(pack, seen(pack))
    assert small.summary()["trust_masked"] == 0


@pytest.mark.parametrize("pull", [0.0, 0.5])
def test_what_does_not_depend_on_the_advantage_is_no_clip(pull: float) -> None:
    """dppo_tv clips the gap of 2 alone, however hard it pulls all late tokens back."""
    loss = partial(dppo_tv, delta=0.99, pull=pull)
    assert collect(100, loss).summary()["clipped"] == pytest.approx(1 / 5)

"""Field cases of the trainer: one denominator, ranks in step, ratios without bounds, packed rows.

On real ranks and under ZeRO the same cases are in `training/test_gradient_equality.py`; what a
crash loses, in `e2e/test_trainer_death.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from made import build, consider, gradient, rules, share, tiny_model
from rank_cases import CASES, Case, infinite_on_one, ten_then_zero
from test_gradient import close
from test_packed import pack_of, plain
from torch import Tensor

from pipeline.model.fingerprint import fingerprint
from pipeline.model.packed import evaluate
from pipeline.protocols import Loss, Pack
from services.training.backends.torch import TorchBackend
from services.training.considered import SKIPPED
from services.training.losses import cispo, ppo
from services.training.objective import Objective
from services.training.optimize import Optimizer, act_alone
from services.training.records import plan


def summed_over(ranks: Sequence[Sequence[Pack]], loss: Loss) -> Tensor:
    """What an all-reduce that adds up would leave on each rank."""
    total = torch.zeros_like(gradient(tiny_model()))
    for packs in ranks:
        model = tiny_model()
        backend, objective = TorchBackend(model), Objective(loss)
        for pack in packs:
            backend.backward(pack, partial(objective, pack))
        total += gradient(model)
    return total


@pytest.mark.parametrize(
    ("case", "name", "ranks", "pack_tokens"),
    [
        ("C095", "C096", 1, 1),
        ("C096", "C096", 2, 99),
        ("C097", "8 packs", 1, 10),
        ("C097", "8 packs", 1, 20),
        ("C097", "8 packs", 2, 10),
    ],
)
def test_there_is_one_denominator(case: str, name: str, ranks: int, pack_tokens: int) -> None:
    given = CASES[name]
    packs = share(given.packs(), ranks, pack_tokens)
    assert sum(map(len, packs)) > 1
    whole = share(given.packs(), 1, 10_000)
    assert [len(each) for each in whole] == [1]
    tolerance = 1e-5 if case == "C097" else 1e-6  # more sums, of float32
    assert close(summed_over(packs, given.loss), summed_over(whole, given.loss)) < tolerance


def test_C096_the_denominator_of_a_rank_would_be_seen() -> None:
    """Each rank by its own count, then the mean: half of ten times as much."""
    packs = share(CASES["C096"].packs(), 2, 99)
    own = [[p._replace(weight=p.weight / each[0].weight.sum()) for p in each] for each in packs]
    wrong = summed_over(own, ten_then_zero) / 2
    right = summed_over(packs, ten_then_zero)
    assert close(wrong, 5 * right) < 1e-5


@pytest.mark.parametrize(
    ("case", "name", "passes"),
    [("C099", "C099 3 and 2", 3), ("C099", "C099 1 and 0", 1), ("C100", "C100", 4)],
)
def test_all_ranks_make_as_many_passes(case: str, name: str, passes: int) -> None:
    given = CASES[name]
    packs = share(given.packs(), 2, given.pack_tokens)
    assert [len(each) for each in packs] == [passes, passes]
    alone = [given.packs()]
    assert close(summed_over(packs, given.loss), summed_over(alone, given.loss)) < 1e-6
    if case == "C100":
        assert not any(pack.advantage.any() for pack in packs[0])


def test_C101_three_steps_that_are_not_finite_are_three_that_were_skipped() -> None:
    given = Case(CASES["8 packs"].groups, 10, infinite_on_one)
    model = tiny_model()
    backend, objective = TorchBackend(model), Objective(given.loss)
    optimizer = Optimizer(lambda *_: act_alone(backend, objective, batch.packs, 1.0), rate=float)
    judged = [consider(g, rules()) for g in given.groups()]
    batch = build(judged, rules(), pack_tokens=10)
    before = fingerprint(backend.weights())
    for number in (1, 2, 3):
        record = plan(batch.planned, number=number, epoch=1, version=0)
        step = optimizer.step(batch.planned, record)
        assert not step.result.finite and step.learning_rate == number
        assert {fate for fates in step.batch.fates.values() for fate in fates} == {SKIPPED}
    assert fingerprint(backend.weights()) == before


@pytest.mark.parametrize("loss", [cispo, ppo])
@pytest.mark.parametrize("mask", [0.0, 1.0])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_C102_a_ratio_of_e_89_is_finite(loss: Loss, mask: float, advantage: float) -> None:
    pack = pack_of([5, 6])
    pack = pack._replace(
        weight=torch.tensor([0.0, mask]),
        behaviour=torch.tensor([float("nan"), -91.0]),
        advantage=torch.tensor([float("nan"), advantage]).nan_to_num(),
    )
    logp = torch.tensor([float("-inf"), -2.0]).requires_grad_()
    value = Objective(loss)(pack, logp)
    value.backward()
    assert value.isfinite() and logp.grad is not None and logp.grad.isfinite().all()


def test_C106_no_target_crosses_a_border() -> None:
    seen = evaluate(tiny_model(), pack_of([10, 11, 12], [20, 21])).logp
    assert (seen != 0).tolist() == [False, True, True, False, True]
    assert torch.allclose(seen, plain(tiny_model(), [10, 11, 12], [20, 21]), atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_C107_a_packed_row_sees_nothing_of_another(attention: str) -> None:
    model = tiny_model()
    model.set_attn_implementation(attention)
    one, other = (evaluate(model, pack_of(a, [20, 21])).logp for a in ([10, 11, 12], [10, 5, 12]))
    assert torch.equal(one[3:], other[3:]) and not torch.equal(one[:3], other[:3])

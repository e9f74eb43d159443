import math

import pytest
import torch
from made import tokens

from pipeline.model.sampling import logprobs
from pipeline.protocols import Loss
from services.training.losses import cispo, ppo
from services.training.ratios import ratio

LOSSES = [cispo, ppo]


def test_C001_one_temperature_on_both_sides_gives_ratio_1() -> None:
    logits, half = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.5])
    tempered = logprobs(logits, half)[0, 1]
    untempered = logits.log_softmax(-1)[0, 1]
    assert tempered.item() == pytest.approx(-2.1429, abs=1e-4)
    assert ratio(tempered, tempered).item() == 1
    assert ratio(tempered, untempered).item() == pytest.approx(0.479, abs=1e-3)


@pytest.mark.parametrize(("options", "expected"), [({}, 3.0), ({"dual_clip": math.inf}, 10.0)])
def test_dual_clip_bounds_a_token_with_negative_advantage(
    options: dict[str, float], expected: float
) -> None:
    t = tokens(math.log(10), 0.0, -1.0)
    assert ppo(t, **options).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("r", "advantage", "loss", "gradient"),
    [
        (1.1, 1.0, -1.1, -1.1),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.1, -1.0, 1.1, 1.1),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, -1.0, 0.8, 0.0),
        (4.0, -1.0, 3.0, 0.0),
    ],
)
def test_ppo_clips_where_the_ratio_has_gone_far_enough(
    r: float, advantage: float, loss: float, gradient: float
) -> None:
    t = tokens(math.log(r), 0.0, advantage)
    value = ppo(t)
    value.sum().backward()
    assert value.item() == pytest.approx(loss, rel=1e-6)
    assert t.logp.grad is not None
    assert t.logp.grad.item() == pytest.approx(gradient, rel=1e-6)


@pytest.mark.parametrize(("r", "weight"), [(0.2, 0.2), (1.0, 1.0), (4.0, 4.0), (50.0, 5.0)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_weighs_the_gradient_by_the_clipped_ratio(
    r: float, weight: float, advantage: float
) -> None:
    t = tokens(-1.0, -1.0 - math.log(r), advantage)
    cispo(t).sum().backward()
    assert t.logp.grad is not None
    assert t.logp.grad.item() == pytest.approx(-weight * advantage, rel=1e-5)


def test_cispo_takes_both_bounds() -> None:
    for logp, expected in ((0.0, 1.2), (-9.0, 0.9)):
        t = tokens(logp, -4.0, 1.0)
        cispo(t, low=0.9, high=1.2).sum().backward()
        assert t.logp.grad is not None
        assert t.logp.grad.item() == pytest.approx(-expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize(("policy", "behaviour"), [(-2.0, -91.0), (-91.0, -2.0)])
def test_C102_losses_and_gradients_are_finite_and_bounded_however_far_off(
    loss: Loss, advantage: float, policy: float, behaviour: float
) -> None:
    t = tokens(policy, behaviour, advantage)
    value = loss(t)
    value.sum().backward()
    assert t.logp.grad is not None
    assert value.isfinite().all()
    assert abs(t.logp.grad.item()) <= 5.0 * abs(advantage)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_each_tokens_gradient_is_bounded_at_every_ratio(loss: Loss, advantage: float) -> None:
    policy = torch.linspace(-60, 0, 2001).requires_grad_()
    t = tokens(policy, -30.0, advantage)
    loss(t).sum().backward()
    assert policy.grad is not None
    assert policy.grad.abs().max() <= 5.0
    assert policy.grad.abs().max() > 1.0

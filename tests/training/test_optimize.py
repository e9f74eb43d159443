import pytest
from made import tiny_model

from services.training.backends.torch import TorchBackend
from services.training.corrections import Normalised, tis
from services.training.losses import M2PO, ppo
from services.training.objective import Objective
from services.training.optimize import act_alone, learning_rate

WIDE = [Objective(M2PO(), anchor="proximal"), Objective(ppo, Normalised(tis), "proximal")]


@pytest.mark.parametrize("objective", WIDE, ids=["m2po", "normalise"])
def test_a_step_without_packs_is_not_taken_whatever_must_see_it_first(objective: Objective) -> None:
    done = act_alone(TorchBackend(tiny_model()), objective, [], 1e-3)
    assert not done.result.finite and done.statistics.tokens_by_lag() == []


def test_the_rate_rises_linearly_to_its_level_and_stays() -> None:
    rates = [learning_rate(step, peak=0.6, warmup_steps=2) for step in range(1, 7)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.6])


def test_without_a_warm_up_the_first_step_is_level() -> None:
    assert learning_rate(1, peak=0.3, warmup_steps=0) == 0.3

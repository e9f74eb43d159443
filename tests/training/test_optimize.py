import pytest

from services.training.optimize import learning_rate


def test_the_rate_rises_linearly_to_its_level_and_stays() -> None:
    rates = [learning_rate(step, peak=0.6, warmup_steps=2) for step in range(1, 7)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.6, 0.6, 0.6])


def test_without_a_warm_up_the_first_step_is_level() -> None:
    assert learning_rate(1, peak=0.3, warmup_steps=0) == 0.3

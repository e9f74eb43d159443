import pytest
import torch

from services.training.advantages import dr_grpo, flat, grpo


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 1, 0], [0.577, 0.577, -1.155]),
        ([0, 0, 0, 1], [-0.5, -0.5, -0.5, 1.5]),
    ],
)
def test_C066_grpo_divides_by_the_std_over_n_less_1(
    rewards: list[float], expected: list[float]
) -> None:
    got = grpo(torch.tensor(rewards, dtype=torch.float64))
    assert got.tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("advantage", [grpo, dr_grpo])
def test_C061_a_group_of_one_has_advantage_0(advantage: "object") -> None:
    assert advantage(torch.tensor([1.0])).tolist() == [0.0]  # type: ignore[operator]


def test_grpo_of_rewards_that_differ_by_rounding_is_0() -> None:
    rewards = torch.tensor([1e6, 1e6 + 0.1, 1e6], dtype=torch.float64)
    assert grpo(rewards).tolist() == [0, 0, 0]


def test_dr_grpo_only_centres() -> None:
    assert dr_grpo(torch.tensor([1.0, 0.0, 0.0, 0.0])).tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.5], True), ([1, 1], True), ([0, 1e-5], False), ([1e3, 1e3 + 1e-4], True)],
)
def test_what_is_flat(values: list[float], expected: bool) -> None:
    assert flat(torch.tensor(values, dtype=torch.float64)) is expected

import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from made import build, consider, group, member, rules, tokens
from torch import Tensor

from pipeline.protocols import Pack, Tokens
from services.training.corrections import Normalised, none, opsm, product, tis
from services.training.losses import ppo
from services.training.objective import Objective


def gaps(
    values: Sequence[float], sequence: Sequence[int], weight: Sequence[float] | None = None
) -> Tokens:
    """Tokens whose l = anchor - behaviour is as given."""
    made = tokens([-1.0] * len(values), -1.0, 1.0)
    anchor = torch.tensor([value - 1.0 for value in values])
    numbers = torch.tensor(sequence)
    weights = torch.ones(len(values)) if weight is None else torch.tensor(weight)
    return made._replace(anchor=anchor, sequence=numbers, weight=weights)


def test_tis_of_a_token_is_the_ratio_up_to_its_cap() -> None:
    got = tis(gaps([0.0, 0.5, -3.0, 2.0], [0, 0, 1, 1]))
    assert got.tolist() == pytest.approx([1.0, math.exp(0.5), math.exp(-3), 2.0])
    assert tis(gaps([2.0], [0]), cap=5.0).item() == 5.0
    assert tis(gaps([1.0], [0]), cap=5.0).item() == pytest.approx(math.e)


def test_geometric_tis_is_that_of_a_sequences_mean_and_not_of_a_packed_rows() -> None:
    got = tis(gaps([0.2, 0.6, 3.0, -1.0, -3.0], [4, 4, 9, 2, 2]), level="geometric")
    expected = [math.exp(0.4)] * 2 + [2.0] + [math.exp(-2.0)] * 2
    assert got.tolist() == pytest.approx(expected)


def test_tokens_outside_the_loss_are_not_in_the_mean() -> None:
    given = gaps([0.2, 50.0, 0.4], [0, 0, 0], weight=[0.5, 0.0, 0.5])
    assert tis(given, level="geometric")[0].item() == pytest.approx(math.exp(0.3))


@pytest.mark.parametrize("level", ["token", "geometric"])
@pytest.mark.parametrize("far", [-89.0, 89.0])
def test_C102_weights_are_finite_however_far_off(level: str, far: float) -> None:
    weight = tis(gaps([far, far], [0, 1]), level=level)  # type: ignore[arg-type]
    assert weight.isfinite().all() and (weight <= 2).all() and (weight >= 0).all()


def packs_of(pack_tokens: int) -> list[Pack]:
    members = [
        member([5, 6, 7], 1.0, logprobs=[-3.0, -0.2, -1.0]),
        member([9, 2], 0.0, logprobs=[-2.5, -2.0]),
        member([4, 4, 4, 4], 0.0, logprobs=[-1.0] * 4, mask=((1, 2),)),
    ]
    judged = consider(group("g", members), rules())
    return list(build([judged], rules(), pack_tokens=pack_tokens).packs)


def value_and_gradient(objective: Objective, pack_tokens: int) -> tuple[float, Tensor]:
    value, parts = 0.0, []
    for pack in packs_of(pack_tokens):
        logp = torch.full(pack.ids.shape, -1.5).requires_grad_()
        loss = objective(pack, logp)
        loss.backward()
        assert logp.grad is not None
        value += loss.item()
        parts += [logp.grad[pack.weight > 0]]
    return value, torch.cat(parts)


@pytest.mark.parametrize("level", ["token", "geometric"])
def test_a_corrected_gradient_is_weight_times_advantage_over_all_tokens(level: str) -> None:
    """With the proximal anchor r is 1: the gradient is -w A / N, whatever the packs."""

    def correction(tokens: Tokens) -> Tensor:
        return tis(tokens, level=level)  # type: ignore[arg-type]

    objective = Objective(ppo, correction, "proximal")
    behaviour = [[-3.0, -0.2, -1.0], [-2.5, -2.0], [-1.0, -1.0, -1.0]]
    advantages = [1.1547, -0.57735, -0.57735]
    expected = []
    for row, advantage in zip(behaviour, advantages, strict=True):
        gap = [-1.5 - b for b in row]
        mean = sum(gap) / len(gap)
        for one in gap:
            weight = min(math.exp(one if level == "token" else mean), 2.0)
            expected.append(-weight * advantage / 8)
    for pack_tokens in (1, 99):
        _, got = value_and_gradient(objective, pack_tokens)
        assert got.tolist() == pytest.approx(expected, rel=1e-4)


def test_what_a_correction_takes_out_stays_in_the_denominator() -> None:
    def first_alone(tokens: Tokens) -> Tensor:
        return (tokens.sequence == 0).float()

    def one(tokens: Tokens) -> Tensor:
        return torch.ones_like(tokens.logp) + 0 * tokens.logp

    for pack_tokens in (1, 99):
        value, _ = value_and_gradient(Objective(one, first_alone, "proximal"), pack_tokens)
        assert value == pytest.approx(3 / 8)


def test_normalising_does_not_make_up_for_what_is_taken_out() -> None:
    """Two tokens weigh 1/2 and 3/2 of their mean; the others are gone, and stay in N."""
    given = gaps([-1.0, math.log(3) - 1, -4.0, -4.0], [0, 0, 1, 1])
    given = given._replace(advantage=torch.tensor([1.0, 1.0, -1.0, -1.0]))
    weight = Normalised(partial(product, of=[partial(tis, cap=9.0), opsm]))
    assert weight.told(weight.look(given))(given).tolist() == pytest.approx([0.5, 1.5, 0.0, 0.0])


def test_a_correction_carries_no_gradient() -> None:
    def leaking(tokens: Tokens) -> Tensor:
        return tokens.logp.exp()

    plain = value_and_gradient(Objective(ppo, none, "proximal"), 99)[1]
    weighted = value_and_gradient(Objective(ppo, leaking, "proximal"), 99)[1]
    assert torch.allclose(weighted, plain * math.exp(-1.5))

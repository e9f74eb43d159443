import pytest
import torch
from made import group, member, rules
from torch import Tensor

from pipeline.protocols import Loss, Tokens
from services.training.batch import build
from services.training.considered import consider
from services.training.losses import cispo, ppo
from services.training.objective import Objective


def ten_then_zero(tokens: Tokens) -> Tensor:
    """Loss 10 on tokens of sequence 0, and 0 elsewhere."""
    return 10.0 * (tokens.sequence == 0) + 0 * tokens.logp


def one(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.logp)


def one_on_the_first_sequence(tokens: Tokens) -> Tensor:
    """What a trust mask does: it zeroes a loss, and not the count."""
    return (tokens.sequence == 0).float()


@pytest.mark.parametrize("pack_tokens", [1, 100])
def test_C095_one_token_of_loss_10_and_nine_of_0_make_1(pack_tokens: int) -> None:
    members = [member([5], 1.0), member([5] * 9, 0.0)]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=pack_tokens)
    assert len(batch.packs) == (2 if pack_tokens == 1 else 1)
    loss = sum(Objective(ten_then_zero)(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(1.0)


def test_C071_what_is_outside_the_loss_mask_is_not_in_the_denominator() -> None:
    members = [member([5] * 4, 1.0), member([5] * 6, 0.0, mask=((0, 6),), finish="length")]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=100)
    loss = sum(Objective(one)(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(1.0)


def test_what_a_loss_itself_sets_to_0_stays_in_the_denominator() -> None:
    members = [member([5] * 4, 1.0), member([5] * 6, 0.0)]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=100)
    objective = Objective(one_on_the_first_sequence)
    loss = sum(objective(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(0.4)


@pytest.mark.parametrize("loss", [cispo, ppo])
@pytest.mark.parametrize("masked", [-91.0, float("-inf"), float("nan")])
def test_C102_what_stands_outside_the_loss_never_reaches_it(loss: Loss, masked: float) -> None:
    behaviour = [-2.0, -91.0, -2.0]
    members = [member([5, 6, 7], 1.0, logprobs=behaviour, mask=((1, 2),))]
    members.append(member([5], 0.0, logprobs=[-2.0]))
    (pack,) = build([consider(group("g", members), rules())], rules(), pack_tokens=99).packs
    logp = torch.full(pack.ids.shape, -2.0)
    logp[3] = masked  # two of the prompt, then one token inside
    logp.requires_grad_()
    value = Objective(loss)(pack, logp)
    value.backward()
    assert value.isfinite() and logp.grad is not None and logp.grad.isfinite().all()
    assert logp.grad.nonzero().squeeze(-1).tolist() == [2, 4, 7]

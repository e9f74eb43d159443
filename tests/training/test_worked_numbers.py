"""Numbers that any faithful implementation reproduces, worked by hand, one claim a line."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_objective import EVERY
from made import Batch, build, consider, group, member, rules, share, tiny_model, tokens
from rank_cases import CASES
from test_packed import pack_of, plain
from torch import Tensor

from pipeline.messages import Span
from pipeline.model.packed import evaluate
from pipeline.model.sampling import kept_logprobs, logprobs
from pipeline.model.truncation import Limits, keep, renormalised
from pipeline.protocols import Pack, Tokens
from pipeline.versions import judge
from services.training.advantages import dr_grpo, grpo, rloo
from services.training.backends.torch import TorchBackend
from services.training.corrections import tis
from services.training.losses import cispo, ppo
from services.training.objective import Objective
from services.training.optimize import Optimizer, act_alone
from services.training.ratios import ratio
from services.training.records import plan

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])
FIVE_THREE_TWO = torch.tensor([[0.5, 0.3, 0.2]]).log()
ONE = torch.ones(1)


def ratio_of_temperatures(engine: float, trainer: float) -> float:
    """Of the likeliest token, had each side divided the logits by its own temperature."""
    sides = [logprobs(LOGITS, torch.tensor([t]))[0, 1] for t in (trainer, engine)]
    return ratio(*sides).item()


def top_p_in_the_engine() -> list[float]:
    limits = Limits(torch.zeros(1, dtype=torch.int64), torch.tensor([0.8]), torch.zeros(1))
    kept = keep(FIVE_THREE_TWO, limits)
    return renormalised(FIVE_THREE_TWO, kept).exp()[0].tolist()


def top_p_in_the_trainer() -> list[float]:
    inside = torch.ones(1, 2, dtype=torch.bool)
    return kept_logprobs(FIVE_THREE_TWO, ONE, torch.tensor([[0, 1]]), inside).exp()[0].tolist()


def batch_of(*members: Any, pack_tokens: int = 99) -> Batch:
    judged = consider(group("g", members), rules())
    return build([judged], rules(), pack_tokens=pack_tokens)


def summed(objective: Objective, packs: "tuple[Pack, ...] | list[Pack]") -> float:
    return sum(objective(p, torch.zeros(p.ids.shape)).item() for p in packs)


def ten_then_zero(tokens: Tokens) -> Tensor:
    return 10.0 * (tokens.sequence == 0) + 0 * tokens.logp


def ones(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.logp)


def the_first_sequence(tokens: Tokens) -> Tensor:
    return (tokens.sequence == 0).float()


def one_and_nine(pack_tokens: int, ranks: int) -> float:
    batch = batch_of(member([5], 1.0), member([5] * 9, 0.0), pack_tokens=pack_tokens)
    return sum(summed(Objective(ten_then_zero), s) for s in share(batch.packs, ranks, pack_tokens))


def four_and_six(*, masked: bool, correction: Callable[[Tokens], Tensor] = ones) -> float:
    mask = ((0, 6),) if masked else ()
    batch = batch_of(member([5] * 4, 1.0), member([5] * 6, 0.0, mask=mask))
    return summed(Objective(ones, correction, "proximal"), batch.packs)


def all_masked() -> tuple[Any, ...]:
    """Loss, tokens, whether a step was taken, its fates, and what moved."""
    batch = batch_of(member([5] * 4, 1.0, mask=((0, 4),)), member([5] * 6, 0.0, mask=((0, 6),)))
    model = tiny_model()
    before = [p.clone() for p in model.parameters()]
    backend, objective = TorchBackend(model), Objective(cispo)
    optimizer = Optimizer(lambda *_: act_alone(backend, objective, batch.packs, 1.0), rate=float)
    step = optimizer.step(batch.planned, plan(batch.planned, number=1, epoch=1, version=0))
    moved = sum(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return summed(objective, batch.packs), batch.tokens, step.result.finite, moved


def shuffled_groups() -> list[float]:
    """Advantages by (group, member) of A = [1, 1, 0] of four, and B, in another order."""
    a = {2: member([5], 0.0), 0: member([5], 1.0), 1: member([5], 1.0)}
    b = {3: member([5], 1.0), 1: member([5], 0.0), 0: member([5], 0.0), 2: member([5], 0.0)}
    judged = [consider(group(n, m), rules()) for n, m in (("B", b), ("A", a))]
    rows = {(c.brief.group, r.member): r.advantage for c in judged for r in c.rows}
    return [rows[key] for key in sorted(rows)]


def loss_of(loss: Callable[..., Tensor], r: float, advantage: float, **options: float) -> float:
    return loss(tokens(math.log(r), 0.0, advantage), **options).item()


def reasons() -> list[str | None]:
    """Trainer step 5, lag.max 2, one member for each version; version v was made by step v."""
    freshness = rules(step=5, lag_max=2).freshness
    return [judge([Span(v, 1, "boot")], freshness)[0].reason for v in (2, 3, 4, 5, 6)]


def packed_targets() -> list[int | None]:
    """Which id each position of [10, 11, 12 | 20, 21] predicts."""
    pack = pack_of([10, 11, 12], [20, 21])
    seen = evaluate(tiny_model(), pack).logp
    expected = plain(tiny_model(), [10, 11, 12], [20, 21])
    assert torch.allclose(seen, expected, atol=1e-5)
    after = [*pack.ids.tolist()[1:], None]
    has = [*(seen != 0).tolist()[1:], False]
    return [target if known else None for target, known in zip(after, has, strict=True)]


def tis_of(level: str, *gaps: float) -> list[float]:
    made = tokens([0.0] * len(gaps), 0.0, 1.0)._replace(anchor=torch.tensor(gaps))
    return tis(made, level=level).tolist()  # type: ignore[arg-type]


def rewards(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


WORKED: dict[str, tuple[Callable[[], Any], Any]] = {
    "one temperature on both sides": (lambda: ratio_of_temperatures(0.5, 0.5), 1.0),
    "two temperatures": (lambda: ratio_of_temperatures(1.0, 0.5), 0.479),
    "top-p .8, engine": (top_p_in_the_engine, [0.625, 0.375, 0.0]),
    "top-p .8, trainer": (top_p_in_the_trainer, [0.625, 0.375]),
    "1 token of 10 and 9 of 0, one pack": (lambda: one_and_nine(99, 1), 1.0),
    "1 token of 10 and 9 of 0, two packs": (lambda: one_and_nine(1, 1), 1.0),
    "1 token of 10 and 9 of 0, two ranks": (lambda: one_and_nine(99, 2), 1.0),
    "6 of 10 outside the loss mask": (lambda: four_and_six(masked=True), 1.0),
    "6 of 10 under the trust mask": (
        lambda: four_and_six(masked=False, correction=the_first_sequence),
        0.4,
    ),
    "all outside the loss mask": (all_masked, (0.0, 0, False, 0)),
    "grpo by group": (shuffled_groups, [0.577, 0.577, -1.155, -0.5, -0.5, -0.5, 1.5]),
    "grpo of a singleton": (lambda: grpo(rewards(1)).tolist(), [0.0]),
    "dr_grpo": (lambda: dr_grpo(rewards(1, 1, 0, 0)).tolist(), [0.5, 0.5, -0.5, -0.5]),
    "rloo": (lambda: rloo(rewards(1, 0, 0, 0)).tolist(), [1.0, -1 / 3, -1 / 3, -1 / 3]),
    "rloo of a singleton": (lambda: rloo(rewards(1)).tolist(), [0.0]),
    "ppo with dual clip": (lambda: loss_of(ppo, 10, -1), 3.0),
    "ppo without dual clip": (lambda: loss_of(ppo, 10, -1, dual_clip=math.inf), 10.0),
    "lag": (reasons, ["stale", None, None, None, "future_version"]),
    "packed targets": (packed_targets, [11, 12, None, 21, None]),
    "tis by token": (lambda: tis_of("token", 0.0, 3.0, -1.0), [1.0, 2.0, math.exp(-1)]),
    "tis, geometric": (lambda: tis_of("geometric", 0.0, 0.6), [math.exp(0.3)] * 2),
}


NAMES = ("lag", "packed targets")
"""Claims that are no quantities."""


@pytest.mark.parametrize("claim", WORKED)
def test_worked(claim: str) -> None:
    compute, expected = WORKED[claim]
    if claim in NAMES:
        assert compute() == expected
    else:
        assert compute() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize(("policy", "behaviour"), [(-2.0, -91.0), (-91.0, -2.0)])
def test_ratios_out_of_all_bounds(
    name: str, inside: bool, advantage: float, policy: float, behaviour: float
) -> None:
    """Of each loss, correction and divergence: finite, and within the bounds of what it is made of.

    Those are in `test_formulas`, by loss; here a correction of at most 20 may stand on top.
    """
    (pack,) = CASES["C099 1 and 0"].packs()
    weight = torch.where(pack.weight > 0, float(inside), 0.0)
    pack = pack._replace(
        weight=weight,
        behaviour=torch.full_like(weight, behaviour),
        advantage=torch.full_like(weight, advantage),
        reference=torch.full_like(weight, behaviour),
        lag=torch.ones_like(pack.lag),
    )
    logp = torch.full_like(weight, policy).requires_grad_()
    objective = EVERY[name]
    objective = objective.told(objective.look(pack, logp.detach()))
    value = objective(pack, logp)
    value.backward()
    assert value.isfinite() and logp.grad is not None and logp.grad.isfinite().all()
    pull = 0.3 * 5 * 20 if objective.kl else 2.0  # of what has no advantage
    bound = 20 * abs(advantage) * (5 if "tis" in name else 1) + pull
    assert logp.grad.abs().max().item() <= bound * inside

"""Each formula, value and gradient in float64, against `by_hand`, which shares no code with it."""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import by_hand
import pytest
import torch
from by_hand import Row, Token
from every_objective import EVERY, MORE_LOSSES, OPTIONS, divergences, losses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline import plugins
from pipeline.anchor import LOSSES as TRAITS
from pipeline.families import CORRECTIONS, DIVERGENCES, LOSSES
from pipeline.protocols import Loss, Tokens, Wide
from services.training.corrections import Normalised, product
from services.training.divergence import distilled, k3, top_k
from services.training.losses import M2PO, gspo

EXACT = 1e-10


def near(got: Tensor, expected: list[float]) -> bool:
    other = torch.tensor(expected, dtype=torch.float64)
    return bool(((got - other).abs() <= EXACT * other.abs().clamp(min=1)).all())


def made(seed: int, *, far: float, rows: int = 9) -> list[Row]:
    """Rows of 1 to 9 tokens, some outside the loss, of gaps about so far; one is all outside."""
    rng = random.Random(seed)

    def token(number: int, a: float, place: int) -> Token:
        pi = -rng.expovariate(0.7)
        return Token(
            pi=pi,
            mu=min(0.0, pi + rng.gauss(0, far)),
            anchor=min(0.0, pi + rng.gauss(0, far)),
            a=a,
            weight=0.0 if number == 3 or rng.random() < 0.2 else rng.uniform(0.5, 1.5),
            score=scores[number],
            segment=place // 3,
            lag=rng.randrange(5),
            reference=-rng.expovariate(0.7),
            teacher=-rng.expovariate(0.7),
        )

    lengths = [1, *(rng.randint(2, 9) for _ in range(rows - 1))]
    advantages = [rng.choice([1.3, -0.7, 0.0]) for _ in lengths]
    scores = [rng.choice([-1.0, 0.0, 1.0]) for _ in lengths]
    return [
        [token(number, advantages[number], place) for place in range(length)]
        for number, length in enumerate(lengths)
    ]


def extreme() -> list[Row]:
    """pi -2 and mu -91, and the reverse, with all signs of A, in the mask and out of it."""
    return [
        [
            Token(pi, mu, mu, a, weight, float(a > 0), 0, 2, mu, mu)
            for pi, mu in (there, back)
            for weight in (0.25, 0.0)
        ]
        for there, back in [((-2.0, -91.0), (-91.0, -2.0)), ((-91.0, -2.0), (-2.0, -91.0))]
        for a in (1.0, 0.0, -1.0)
    ]


SCENES = {
    "on policy": made(1, far=0.0),
    "near": made(2, far=0.05),
    "far": made(3, far=1.0),
    "very far": made(4, far=6.0),
    "lonely": [made(5, far=0.5)[0]],
    "extreme": extreme(),
}


def tokens_of(rows: list[Row], kind: str = "anchor") -> Tokens:
    """In one pack; the anchor is mu where `kind` says so."""
    flat = [t for row in rows for t in row]
    numbers = [n for n, row in enumerate(rows) for _ in row]

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(t, name) for t in flat], dtype=torch.float64)

    return Tokens(
        logp=column("pi").requires_grad_(),
        anchor=column(kind),
        behaviour=column("mu"),
        advantage=column("a"),
        weight=column("weight"),
        sequence=torch.tensor(numbers),
        lag=column("lag").long(),
        score=column("score"),
        segment=column("segment").long(),
        reference=column("reference"),
        teacher=column("teacher"),
    )


def told(part: Any, tokens: Tokens) -> Any:
    return part.told(part.look(tokens)) if isinstance(part, Wide) else part


def check(loss: Loss, tokens: Tokens, expected: list[by_hand.Term]) -> None:
    values = loss(tokens)
    (values * tokens.weight).sum().backward()
    assert tokens.logp.grad is not None
    inside = tokens.weight > 0
    by_token = torch.tensor([v for values, _ in expected for v in values], dtype=torch.float64)
    assert near(values.detach()[inside], by_token[inside].tolist())
    assert near(tokens.logp.grad, [g for _, gradient in expected for g in gradient])


SPECS = [*({"use": name} for name in LOSSES), *MORE_LOSSES]


OTHERWISE: list[dict[str, Any]] = [
    {"use": "ppo", "clip_low": 0.1, "clip_high": 0.5, "dual_clip": 2.0},
    {"use": "ppo", "dual_clip": math.inf},
    {"use": "gspo", "clip_low": 0.1, "clip_high": 0.2, "dual_clip": 1.5},
    {"use": "cispo", "low": 0.9, "high": 1.2},
    {"use": "rollout_is", "low": 0.5, "high": 2.0},
    {"use": "kimi", "tau": 0.5, "level": "sequence"},
    {"use": "dppo_tv", "delta": 0.05, "cap": 1.5, "pull": 0.1},
    {"use": "ipo", "delta": 0.3, "cap": 1.5, "pull": 0.1},
    {"use": "sapo", "positive": 2.0, "negative": 0.5},
    {"use": "m2po", "threshold": 0.5, "cap": 1.5, "dual_clip": 1.2},
]
"""With other options than the defaults."""


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("spec", [*SPECS, *OTHERWISE], ids=str)
def test_a_loss_and_its_gradient_are_those_worked_by_hand(spec: dict[str, Any], scene: str) -> None:
    name, options = spec["use"], {k: v for k, v in spec.items() if k != "use"}
    rows = SCENES[scene]
    tokens = tokens_of(rows)
    loss = told(plugins.build(LOSSES, spec, at="-"), tokens)
    if name == "m2po":
        expected = by_hand.m2po(rows, **options)
    else:
        expected = [getattr(by_hand, name)(row, **options) for row in rows]
    check(loss, tokens, expected)


def rules_of_corrections() -> list[tuple[str, dict[str, Any]]]:
    wide = [("tis", {"level": level, "cap": 0.9}) for level in ("token", "sequence", "geometric")]
    return [(name, o) for name in CORRECTIONS for o in OPTIONS[name]] + wide


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize(("name", "options"), rules_of_corrections(), ids=str)
def test_a_correction_is_that_worked_by_hand(
    name: str, options: dict[str, Any], scene: str
) -> None:
    rows = SCENES[scene]
    got = plugins.build(CORRECTIONS, {"use": name, **options}, at="-")(tokens_of(rows))
    assert near(got, [w for row in rows for w in getattr(by_hand, name)(row, **options)])


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", ["tis", "icepop", "opsm"])
def test_normalised_weights_are_those_worked_by_hand(name: str, scene: str) -> None:
    rows = SCENES[scene]
    tokens = tokens_of(rows)
    got = told(Normalised(plugins.build(CORRECTIONS, name, at="-")), tokens)(tokens)
    expected = by_hand.normalised(rows, getattr(by_hand, name))
    assert near(got, [w for row in expected for w in row])


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_and_its_gradient_are_those_worked_by_hand(name: str, scene: str) -> None:
    rows = SCENES[scene]
    kl = plugins.build(DIVERGENCES, {"use": name, "coefficient": 0.3}, at="-")
    check(kl, tokens_of(rows), [getattr(by_hand, name)(row, 0.3) for row in rows])


@pytest.mark.parametrize("scene", SCENES)
def test_single_token_distillation_is_that_worked_by_hand(scene: str) -> None:
    rows = SCENES[scene]
    check(distilled, tokens_of(rows), [by_hand.distilled(row) for row in rows])


def test_k3_has_the_gradient_of_its_formula() -> None:
    """By autograd of exp(pi - mu) (e^(ref - pi) - (ref - pi) - 1), where no bound is met."""
    tokens = tokens_of(made(2, far=0.3))
    pi, x = tokens.logp, tokens.reference - tokens.logp
    ((pi - tokens.behaviour).exp() * (x.exp() - x - 1)).sum().backward()
    expected = pi.grad
    again = tokens._replace(logp=pi.detach().requires_grad_())
    k3(again, coefficient=1.0).sum().backward()
    assert expected is not None and again.logp.grad is not None
    assert torch.allclose(again.logp.grad, expected, atol=EXACT)


def test_top_k_distillation_is_the_kl_over_the_teachers_ids_and_padding_is_nothing() -> None:
    teacher = [[math.log(0.6), math.log(0.3)], [math.log(0.9), -math.inf]]
    policy = [[math.log(0.2), math.log(0.7)], [math.log(0.5), -math.inf]]
    own = torch.tensor(policy, dtype=torch.float64).requires_grad_()
    value = top_k(own, torch.tensor(teacher, dtype=torch.float64))
    assert near(value.detach(), [0.6 * math.log(3) + 0.3 * math.log(3 / 7), 0.9 * math.log(1.8)])
    value.sum().backward()
    assert own.grad is not None
    assert near(own.grad.flatten(), [-0.6, -0.3, -0.9, 0.0])


@pytest.mark.parametrize("over", ["sequence", "segment"])
def test_packs_do_not_change_what_is_of_a_sequence(over: str) -> None:
    """Each row by itself, in one pack, and in a pack of another order."""
    rows = made(6, far=0.7)
    spec = {"use": "tis", "level": "geometric", "over": over}
    correction = plugins.build(CORRECTIONS, spec, at="-")
    at_once = correction(tokens_of(rows))
    alone = torch.cat([correction(tokens_of([row])) for row in rows])
    back = correction(tokens_of(rows[::-1])).split([len(row) for row in rows[::-1]])
    assert torch.equal(at_once, alone) and torch.equal(at_once, torch.cat(back[::-1]))


# The bounds that the docstrings promise, of the gradient of a token, for |A| and the rest.

BOUNDS: dict[str, Callable[[float], float]] = {
    "ppo": lambda a: 1.28 * a if a > 0 else -3 * a,
    "gspo": lambda a: 1.0004 * a if a > 0 else -3 * a,
    "cispo": lambda a: 5 * abs(a),
    "topr": abs,
    "tis_pg": abs,
    "kimi": lambda a: abs(a) + 2,
    "dppo_tv": lambda a: 20 * abs(a) + 0.04,
    "ipo": lambda a: 20 * abs(a) + 0.04,
    "sapo": lambda a: (1 + 0.9 / (1.0 if a > 0 else 1.05)) * abs(a),
    "m2po": lambda a: 5 * a if a > 0 else -3 * a,
    "rollout_is": lambda a: 8 * abs(a),
    "reinforce": abs,
    "k2": lambda a: 6.0,
    "k3": lambda a: 30.0,
}
CAP = {"tis sequence": 5.0, "icepop": 5.0, "decoupled": 1.2, "normalised": 20.0}


def test_every_loss_has_a_bound_and_an_anchor() -> None:
    assert BOUNDS.keys() == LOSSES.keys() | DIVERGENCES.keys()
    assert TRAITS.keys() == LOSSES.keys()


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("advantage", [2.0, 0.0, -2.0])
def test_a_tokens_gradient_is_within_its_bound_at_every_ratio(
    spec: dict[str, Any], advantage: float
) -> None:
    policy = torch.cat([torch.linspace(-95, 0, 701), torch.linspace(-33, -27, 701)]).double()
    rows = [[Token(p, -30, -30, advantage, 1.0)] for p in policy.tolist()]
    tokens = tokens_of(rows, "mu")
    loss = plugins.build(LOSSES, spec, at="-")
    loss(tokens).sum().backward()
    assert tokens.logp.grad is not None and tokens.logp.grad.isfinite().all()
    assert tokens.logp.grad.abs().max() <= BOUNDS[spec["use"]](advantage) + 1e-12
    if advantage:  # and the bound is not idle
        assert tokens.logp.grad.abs().max() > 0.8 * BOUNDS[spec["use"]](advantage)


def test_the_kl_terms_are_within_their_bounds_at_every_ratio() -> None:
    policy = torch.linspace(-95, 0, 701).tolist()
    for _, objective in divergences():
        for mu, reference in ((-30.0, -30.0), (-91.0, 0.0), (0.0, -91.0), (-40.0, -10.0)):
            tokens = tokens_of([[Token(p, mu, mu, 1.0, 1.0, reference=reference)] for p in policy])
            assert objective.kl is not None
            objective.kl(tokens).sum().backward()
            assert tokens.logp.grad is not None and tokens.logp.grad.isfinite().all()
            assert tokens.logp.grad.abs().max() <= 0.3 * 20 * 5


ONE_OF_A_KIND = {name: one for name, one in EVERY.items() if "mask_k" not in name or "max" in name}
NUMBER = st.floats(-200, 0, width=32)
TOKEN = st.builds(
    Token,
    pi=NUMBER,
    mu=NUMBER,
    anchor=NUMBER,
    a=st.floats(-10, 10, width=32),
    weight=st.sampled_from([0.0, 1.0]),
    score=st.sampled_from([-1.0, 0.0, 1.0]),
    segment=st.integers(0, 2),
    lag=st.integers(0, 12),
    reference=NUMBER,
    teacher=NUMBER,
)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(TOKEN, min_size=1, max_size=4), min_size=1, max_size=3))
def test_C102_nothing_is_ever_not_a_number(rows: list[Row]) -> None:
    for objective in ONE_OF_A_KIND.values():
        tokens = tokens_of([sorted(row, key=lambda t: t.segment) for row in rows])
        anchor = objective.anchored(tokens.logp.detach(), tokens.behaviour, tokens.lag)
        tokens = tokens._replace(anchor=anchor)
        loss, correction = told(objective.loss, tokens), told(objective.correction, tokens)
        kl = objective.kl(tokens) if objective.kl else 0
        weight = correction(tokens)
        assert weight.isfinite().all() and (weight >= 0).all()
        value = ((loss(tokens) * weight.detach() + kl) * tokens.weight).sum()
        value.backward()
        assert tokens.logp.grad is not None
        assert value.isfinite() and tokens.logp.grad.isfinite().all()
        assert (tokens.logp.grad[tokens.weight == 0] == 0).all()


# Of single parts, what their names promise.


def test_m2po_masks_the_largest_on_the_side_that_leads_away_until_the_mean_is_small() -> None:
    gaps = [0.1, 0.3, 0.5, -3.0]  # the last leads back: A > 0 and r < 1
    outside = [Token(-3.99, -4, -4, 1.0, 0.0)] * 20  # would make the mean small
    tokens = tokens_of([[Token(-4 + g, -4, -4, 1.0, 1.0) for g in gaps] + outside])
    told(M2PO(threshold=0.06), tokens)(tokens).sum().backward()
    assert tokens.logp.grad is not None
    # (.01 + .09 + .25) / 3 is too much, (.01 + .09) / 2 is not
    assert (tokens.logp.grad != 0).tolist()[:4] == [True, True, False, True]


def test_m2po_takes_its_threshold_over_the_whole_step_and_not_over_a_pack() -> None:
    bad, good = (
        [Token(-4 + gap, -4, -4, 1.0, 1.0) for gap in [g] * n] for g, n in ((0.4, 1), (0.01, 9))
    )
    packs = [tokens_of([bad]), tokens_of([good])]
    loss = M2PO()
    alone = told(loss, packs[0])(packs[0])
    both = loss.told(torch.cat([loss.look(pack) for pack in packs]))(packs[0])
    assert alone.item() == 0 and both.item() != 0  # .16 is over .04, and .1609 / 10 is not


def test_gspo_clips_a_sequence_and_not_its_tokens() -> None:
    rows = [[Token(-1.0, -1.5, -1.5, 1.0, 1.0), Token(-2.0, -1.5, -1.5, 1.0, 1.0)]]
    tokens = tokens_of(rows)
    gspo(tokens).sum().backward()  # the mean gap is 0, so s is 1, although each r is far off
    assert tokens.logp.grad is not None and tokens.logp.grad.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("name", [name for name, _ in losses()])
def test_a_loss_is_to_be_minimised(name: str) -> None:
    """On policy each raises the log-prob of what was better than expected, and lowers the other."""
    objective = EVERY[name]
    for a in (1.0, -1.0):
        tokens = tokens_of([[Token(-1.0, -1.0, -1.0, a, 1.0, float(a > 0))]])
        told(objective.loss, tokens)(tokens).sum().backward()
        assert tokens.logp.grad is not None
        assert tokens.logp.grad.item() == pytest.approx(-a)


def test_decoupled_ppo_counts_the_gap_once() -> None:
    """Where nothing is bounded, ratio x weight is exp(pi - mu), whatever the lag."""
    objective = EVERY["decoupled {'cap': 1.2}"]
    for lag in (0, 1, 4):
        tokens = tokens_of([[Token(-1.0, -1.1, 0.0, 1.0, 1.0, lag=lag)]])
        anchor = objective.anchored(tokens.logp.detach(), tokens.behaviour, tokens.lag)
        tokens = tokens._replace(anchor=anchor)
        assert anchor.item() == pytest.approx(-1.1 + 0.1 * lag / (lag + 1))
        value = objective.loss(tokens) * objective.correction(tokens)
        assert value.item() == pytest.approx(-math.exp(0.1))


def test_a_product_of_corrections_is_one() -> None:
    tokens = tokens_of(SCENES["far"])
    parts = [plugins.build(CORRECTIONS, name, at="-") for name in ("tis", "opsm")]
    both = partial(product, of=parts)(tokens)
    assert torch.equal(both, parts[0](tokens) * parts[1](tokens))


def test_small_weights_are_raised_tenfold_at_most() -> None:
    tokens = tokens_of(SCENES["near"])
    small = Normalised(lambda tokens: torch.full_like(tokens.weight, 0.01))
    assert near(told(small, tokens)(tokens), [0.1] * len(tokens.weight))

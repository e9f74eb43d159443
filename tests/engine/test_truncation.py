"""Top-k, top-p and min-p against a reference that a reader can check, and the draw behind them."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pipeline.model.sampling import draw, kept_logprobs, logprobs, member_key, uniforms
from pipeline.model.truncation import Limits, keep, recorded, renormalised

LAST = 1 - 2.0**-52  # the largest uniform

Limit = tuple[int, float, float]
limits_of_rows = st.tuples(
    st.integers(0, 12),
    st.sampled_from([1.0, 0.999, 0.95, 0.8, 0.5, 0.1, 1e-9]),
    st.sampled_from([0.0, 1e-4, 0.05, 0.3, 0.99]),
)
grid = st.integers(-24, 24).map(lambda n: n / 4)  # so that ties are frequent, and exact


def limits(rows: list[Limit]) -> Limits:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return Limits(
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )


def reference(logits: list[float], limit: Limit, slack: float) -> list[int]:
    """The ranking as far as it is kept; `slack` is added to what a boundary asks for."""
    top_k, top_p, min_p = limit
    ranking = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    ranking = ranking[:top_k] if top_k else ranking
    weights = [math.exp(logits[token] - max(logits)) for token in ranking]
    left = []
    mass = 0.0
    for token, weight in zip(ranking, weights, strict=True):
        reached = top_p < 1 and mass / sum(weights) >= top_p + slack
        if left and (reached or weight < min_p * math.exp(-slack)):
            break
        left.append(token)
        mass += weight
    return left


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(1, 30), st.integers(1, 5), st.integers(1, 40))
def test_what_is_kept_is_what_the_plain_reference_keeps(
    data: st.DataObject, size: int, count: int, candidates: int
) -> None:
    rows = data.draw(st.lists(st.lists(grid, min_size=size, max_size=size), min_size=count))
    asked = [data.draw(limits_of_rows) for _ in rows]
    logp = logprobs(torch.tensor(rows), torch.ones(len(rows)))
    kept = keep(logp, limits(asked), candidates=candidates)
    for row, limit, mine in zip(rows, asked, kept, strict=True):
        ids = set(mine.nonzero().squeeze(-1).tolist())
        least, most = reference(row, limit, -3e-6), reference(row, limit, 3e-6)
        assert set(least) <= ids <= set(most)
        assert ids == set(most[: len(ids)])  # a head of the ranking, ties by id


@pytest.mark.parametrize("limit", [(5, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.05), (20, 0.9, 0.02)])
def test_without_ties_it_is_what_the_warpers_of_transformers_keep(limit: Limit) -> None:
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(1)) * 3
    top_k, top_p, min_p = limit
    warped = logits
    if top_k:
        warped = TopKLogitsWarper(top_k)(None, warped)  # type: ignore[arg-type]
    warped = TopPLogitsWarper(top_p)(None, warped)  # type: ignore[arg-type]
    warped = MinPLogitsWarper(min_p)(None, warped)  # type: ignore[arg-type]
    kept = keep(logits.log_softmax(-1), limits([limit] * 64), candidates=16)
    assert torch.equal(kept, warped.isfinite())
    assert torch.allclose(renormalised(logits.log_softmax(-1), kept), warped.log_softmax(-1))


def test_a_bound_that_is_met_exactly_is_met_whatever_the_rounding() -> None:
    for seed in range(50):
        shift = random.Random(seed).uniform(-30, 30)
        logits = torch.tensor([[0.5, 0.3, 0.2]]).log() + shift
        logp = logprobs(logits, torch.ones(1))
        assert keep(logp, limits([(0, 0.8, 0.0)])).tolist() == [[True, True, False]]
        assert keep(logp, limits([(0, 1.0, 0.4)])).tolist() == [[True, True, True]]


def test_ties_at_every_boundary_go_to_the_lower_ids() -> None:
    logp = torch.zeros(1, 3000).log_softmax(-1)
    for limit, count in (((2, 1.0, 0.0), 2), ((0, 0.5, 0.0), 1500), ((0, 1.0, 0.9), 3000)):
        kept = keep(logp, limits([limit]))
        assert kept.nonzero()[:, 1].tolist() == list(range(count))


def test_a_row_without_limits_keeps_all_and_is_recorded_as_the_whole_vocabulary() -> None:
    logp = torch.randn(2, 6).log_softmax(-1)
    kept = keep(logp, limits([(0, 1.0, 0.0), (2, 1.0, 0.0)]))
    counts, ids = recorded(kept)
    assert counts.tolist() == [0, 2]
    assert ids.tolist() == sorted(logp[1].topk(2).indices.tolist())


def test_the_kept_distribution_adds_up_to_one_and_gives_the_rest_nothing() -> None:
    logp = torch.randn(8, 50).log_softmax(-1)
    kept = keep(logp, limits([(0, 0.7, 0.0)] * 8))
    now = renormalised(logp, kept)
    assert torch.allclose(now.exp().sum(-1), torch.ones(8))
    assert torch.equal(now.isfinite(), kept)


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
def test_nothing_outside_the_kept_set_is_ever_drawn(uniform: float) -> None:
    torch.manual_seed(0)
    logp = (torch.randn(2000, 40) * 4).log_softmax(-1)
    kept = keep(logp, limits([(0, 0.6, 0.0)] * 2000))
    u = torch.full((2000,), uniform, dtype=torch.float64)
    ids, chosen = draw(renormalised(logp, kept), torch.ones(2000), u)
    assert kept[torch.arange(2000), ids].all()
    assert chosen.isfinite().all()


def test_draws_follow_the_kept_distribution() -> None:
    logp = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()
    now = renormalised(logp, keep(logp, limits([(3, 1.0, 0.0)])))
    keys = torch.tensor([member_key(1, "g", m) for m in range(4000)])
    ids, _ = draw(now.expand(4000, -1), torch.ones(4000), uniforms(keys, torch.zeros_like(keys)))
    counts = Counter(ids.tolist())
    expected = {0: 4000 * 0.4 / 0.85, 1: 4000 * 0.3 / 0.85, 2: 4000 * 0.15 / 0.85}
    assert counts.keys() == expected.keys()
    assert sum((counts[i] - e) ** 2 / e for i, e in expected.items()) < 15


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False), st.lists(limits_of_rows, min_size=2, max_size=9))
def test_a_row_is_kept_and_drawn_alike_alone_and_in_any_order(
    chance: random.Random, asked: list[Limit]
) -> None:
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    logits = torch.randn(len(asked), 2000, generator=generator) * 2
    order = chance.sample(range(len(asked)), len(asked))

    def drawn(rows: list[int]) -> list[tuple[int, float, list[int]]]:
        logp = logprobs(logits[rows], torch.full((len(rows),), 0.8))
        kept = keep(logp, limits([asked[row] for row in rows]), candidates=64)
        keys = torch.tensor([member_key(0, "g", row) for row in rows])
        ids, chosen = draw(
            renormalised(logp, kept), torch.ones(len(rows)), uniforms(keys, torch.zeros_like(keys))
        )
        sets = [row.nonzero().squeeze(-1).tolist() for row in kept]
        return [*zip(ids.tolist(), chosen.tolist(), sets, strict=True)]

    shuffled = drawn(order)
    for place, row in enumerate(order):
        assert shuffled[place] == drawn([row])[0]


def padded(sets: list[list[int]]) -> tuple[Tensor, Tensor]:
    most = max(map(len, sets))
    ids = torch.tensor([s + s[:1] * (most - len(s)) for s in sets])
    return ids, torch.tensor([[i < len(s) for i in range(most)] for s in sets])


def test_the_gradient_over_a_kept_set_is_exact() -> None:
    """Against finite differences, and against a softmax over the whole vocabulary with a mask."""
    torch.manual_seed(0)
    logits = torch.randn(4, 11, requires_grad=True)
    heat = torch.tensor([1.0, 0.7, 1.3, 0.5])
    ids, inside = padded([[0, 3, 7], [2], [1, 2, 3, 4, 10], [5, 9]])
    weights = torch.randn(ids.shape).masked_fill(~inside, 0)

    def total(at: Tensor) -> Tensor:
        logp = kept_logprobs(at, heat, ids, inside)
        return (logp.masked_fill(~inside, 0) * weights).sum()

    (gradient,) = torch.autograd.grad(total(logits), logits)
    mask = torch.zeros(4, 11, dtype=torch.bool).scatter(1, ids, True)
    exact = (logits.double() / heat.double()[:, None]).masked_fill(~mask, -math.inf)
    chosen = exact.log_softmax(-1).gather(-1, ids).masked_fill(~inside, 0)
    (masked,) = torch.autograd.grad((chosen * weights).sum(), logits)
    assert torch.allclose(gradient, masked, atol=1e-6)
    assert torch.equal(gradient != 0, mask & (mask.sum(-1, keepdim=True) > 1))
    with torch.no_grad():
        for row in range(4):
            for token in range(11):
                step = torch.zeros(4, 11)
                step[row, token] = 1e-2
                slope = (total(logits + step) - total(logits - step)) / 2e-2
                assert slope.item() == pytest.approx(gradient[row, token].item(), abs=1e-3)

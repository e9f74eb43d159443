import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import VOCABULARY, apart, share, tiny_model
from rank_cases import CASES
from torch.utils.flop_counter import FlopCounterMode

from pipeline.protocols import Pack
from services.training.losses import cispo
from services.training.objective import Objective
from services.training.packing import (
    BY_TOKENS,
    Cost,
    Layout,
    by_cost,
    cost_of,
    layout,
    pack,
    span,
    spread,
)
from services.training.sequences import dummy, joined


def same(a: Pack, b: Pack) -> bool:
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def kept(pack: Pack) -> Pack:
    """The pack with a kept set of t % 3 ids at token t."""
    counts = torch.arange(pack.ids.numel()) % 3
    return pack._replace(kept_counts=counts, kept_ids=torch.arange(int(counts.sum())))


def of_each(shares: Layout, costs: Sequence[float]) -> list[list[float]]:
    """Of every pack of every rank."""
    return [[sum(costs[n] for n in numbers) for numbers in mine] for mine in shares]


def wide(pack: Pack, width: int) -> Pack:
    """The pack with `width` numbers a token in one of its columns."""
    return pack._replace(behaviour=torch.rand(pack.ids.numel(), width))


@given(
    st.lists(st.integers(1, 500), max_size=60),
    st.integers(1, 8),
    st.sampled_from([BY_TOKENS, Cost(1, 1 / 64)]),
)
def test_ranks_make_as_many_passes_and_take_no_longer_than_their_mean_and_one_pack(
    lengths: list[int], ranks: int, cost: Cost
) -> None:
    shares = layout(lengths, 400, ranks, cost=cost)
    assert sorted(n for mine in shares for numbers in mine for n in numbers) == [
        *range(len(lengths))
    ]
    assert len(shares) == ranks and len({len(mine) for mine in shares}) == 1
    tokens = [sum(lengths[n] for n in numbers) for mine in shares for numbers in mine]
    many = [len(numbers) > 1 for mine in shares for numbers in mine]
    assert all(count <= 400 or not more for count, more in zip(tokens, many, strict=True))
    costs = [cost(length) for length in lengths]
    each = of_each(shares, costs)
    if ranks == 1:
        assert shares == [pack(lengths, 400)], "in the order of the batch"
        return
    assert all(mine == sorted(mine, reverse=True) for mine in each)
    mean, dearest = sum(costs) / ranks, max((max(mine, default=0.0) for mine in each), default=0.0)
    assert max(map(sum, each)) <= span(shares, costs) <= (mean + dearest) * (1 + 1e-9)
    assert shares == layout(lengths, 400, ranks, cost=cost)


def by_tokens_alone(lengths: Sequence[int], pack_tokens: int, ranks: int) -> Layout:
    """The longest first to whoever has least; then each rank packs by itself."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        min(shares, key=lambda mine: sum(lengths[m] for m in mine)).append(n)
    packed = [
        [[mine[n] for n in numbers] for numbers in pack([lengths[n] for n in mine], pack_tokens)]
        for mine in map(sorted, shares)
    ]
    most = max(map(len, packed))
    return [[*packs, *([[]] * (most - len(packs)))] for packs in packed]


@pytest.mark.parametrize("cost", [BY_TOKENS, Cost(1, 1 / 1024)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_on_long_tails_the_layout_is_better_than_by_tokens_alone_and_never_worse(
    ranks: int, cost: Cost
) -> None:
    spans, others = [], []
    for seed in range(4):
        rng = random.Random(seed)
        lengths = [min(2048, max(4, int(rng.lognormvariate(5.3, 1.0)))) for _ in range(200)]
        costs = [cost(length) for length in lengths]
        mean = sum(costs) / ranks
        spans.append(span(layout(lengths, 2048, ranks, cost=cost), costs) / mean)
        others.append(span(by_tokens_alone(lengths, 2048, ranks), costs) / mean)
        assert spans[-1] <= others[-1]
    assert sum(spans) < sum(others)


def test_where_many_sequences_fill_a_pack_alone_dealing_packs_out_is_shortest() -> None:
    """Of up to 32K tokens, in packs of 8K, on 8 ranks: what the layout has a third plan for."""
    cost, gains = Cost(1, 1 / 2**14), []
    for seed in range(6):
        rng = random.Random(seed)
        lengths = [min(1 << 15, max(8, int(rng.lognormvariate(6, 2.2)))) for _ in range(128)]
        costs = [cost(length) for length in lengths]
        spans = [
            span(by_cost(spread(lengths, 1 << 13, 8, load=load), costs), costs)
            for load in (lengths, costs)
        ]
        gains.append(min(spans) / span(layout(lengths, 1 << 13, 8, cost=cost), costs))
    assert min(gains) >= 1 and sum(gains) / len(gains) > 1.03, gains


def test_the_cost_is_that_of_the_multiplications_of_a_forward_pass() -> None:
    """As torch counts them; an attention that is not causal would meet each pair twice."""
    model = tiny_model()
    model.set_attn_implementation("eager")
    cost = cost_of(model.config)
    for length in (8, 40):
        ids = torch.arange(length)[None] % VOCABULARY
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=ids, use_cache=False)
        rotary = 2 * 4 * length  # of the positions' angles: no part of the cost
        assert counter.get_total_flops() == pytest.approx(
            cost.linear * length + 2 * cost.quadratic * length**2 + rotary, rel=0.01
        )


def test_a_pack_is_its_sequences() -> None:
    (pack,) = CASES["1 pack"].packs()
    pack = wide(kept(pack), 2)
    parts = apart(pack)
    assert [part.ids.numel() for part in parts] == [10] * 8
    assert all(len(part.sequence.unique()) == 1 for part in parts)
    assert same(joined(parts), pack)
    third = parts[2]
    assert (
        third.kept_ids.tolist()
        == pack.kept_ids[pack.kept_counts[:20].sum() :][: int(third.kept_counts.sum())].tolist()
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["C099 3 and 2", "C099 1 and 0", "long tail", "1 pack"])
def test_C099_all_ranks_have_as_many_packs_and_every_token_is_there_once(
    ranks: int, name: str
) -> None:
    packs = CASES[name].packs()
    shares = share(packs, ranks, CASES[name].pack_tokens)
    assert len({len(each) for each in shares}) == 1
    weight = sum(float(pack.weight.sum()) for each in shares for pack in each)
    assert weight == pytest.approx(1.0)
    numbers = [pack.sequence[pack.weight > 0].unique().tolist() for each in shares for pack in each]
    flat = [number for some in numbers for number in some]
    assert len(flat) == len(set(flat))
    tokens = [sum(int((pack.weight > 0).sum()) for pack in each) for each in shares]
    assert sum(tokens) == sum(int((pack.weight > 0).sum()) for pack in packs)


def test_no_packs_are_no_passes_on_any_rank() -> None:
    assert share([], 3, 100) == [[], [], []]


def test_a_dummy_is_in_the_graph_and_its_gradient_is_0() -> None:
    pack = dummy(0)
    logp = torch.tensor([0.0, float("-inf")]).requires_grad_()
    Objective(cispo)(pack, logp).backward()
    assert logp.grad is not None and logp.grad.tolist() == [0.0, 0.0]

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_cases import CASES

from pipeline.protocols import Pack
from services.training.losses import cispo
from services.training.objective import Objective
from services.training.packing import spread
from services.training.shares import apart, dummy, joined, share
from services.training.wire import flattened, unflattened


def same(a: Pack, b: Pack) -> bool:
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def kept(pack: Pack) -> Pack:
    """The pack with a kept set of t % 3 ids at token t."""
    counts = torch.arange(pack.ids.numel()) % 3
    return pack._replace(kept_counts=counts, kept_ids=torch.arange(int(counts.sum())))


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 8))
def test_every_sequence_is_on_one_rank_and_none_has_much_more_than_another(
    lengths: list[int], ranks: int
) -> None:
    shares = spread(lengths, ranks)
    assert sorted(n for share in shares for n in share) == list(range(len(lengths)))
    loads = [sum(lengths[n] for n in share) for share in shares]
    assert len(shares) == ranks and max(loads) - min(loads) <= max(lengths, default=0)


def test_a_pack_is_its_sequences() -> None:
    (pack,) = CASES["1 pack"].packs()
    pack = kept(pack)
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
    pack = dummy()
    logp = torch.tensor([0.0, float("-inf")]).requires_grad_()
    Objective(cispo)(pack, logp).backward()
    assert logp.grad is not None and logp.grad.tolist() == [0.0, 0.0]


def test_packs_travel_whole() -> None:
    rng = random.Random(1)
    packs = [kept(pack) for pack in CASES["long tail"].packs()] + [dummy()]
    rng.shuffle(packs)
    back = unflattened(flattened(packs))
    assert all(same(a, b) for a, b in zip(packs, back, strict=True))

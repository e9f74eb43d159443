"""Sequences into packs, and packs onto ranks, by lengths and costs alone. Pure.

A pack is a row of a forward pass; what it holds in memory is its tokens, what it takes is its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Layout = list[list[list[int]]]
"""The sequences' numbers by rank and pack; a pack may be empty, and all ranks have as many."""


class Cost(NamedTuple):
    """Of a sequence of l tokens in a forward pass: `linear` x l + `quadratic` x l², in FLOPs."""

    linear: float = 1.0
    quadratic: float = 0.0

    def __call__(self, length: int) -> float:
        """Of one sequence."""
        return self.linear * length + self.quadratic * length * length


BY_TOKENS = Cost()


def cost_of(config: Any) -> Cost:
    """Of a decoder, by its transformers config; a backward pass is twice as much throughout.

    A token takes 2 FLOPs for each weight that it is multiplied with: those of the projections, the
    MLP with a gate, and the head. Token t meets t others in each head, twice: l²/2 pairs in all.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    width = getattr(config, "head_dim", None) or hidden // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    layer = hidden * width * (2 * heads + 2 * key_heads) + 3 * hidden * inner
    return Cost(
        linear=2.0 * (config.num_hidden_layers * layer + hidden * config.vocab_size),
        quadratic=2.0 * config.num_hidden_layers * heads * width,
    )


def pack(lengths: Sequence[int], pack_tokens: int) -> list[list[int]]:
    """The sequences' numbers by pack, each of at most `pack_tokens` unless it holds just one.

    First fit, the longest first; equal lengths in their order, so the same lengths always give
    the same packs. Numbers ascend within a pack, packs by their first number.
    """
    packs: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        length = lengths[number]
        fit = next((p for p, free in enumerate(room) if free >= length), len(packs))
        if fit == len(packs):
            packs.append([])
            room.append(pack_tokens)
        packs[fit].append(number)
        room[fit] -= length
    return sorted(sorted(numbers) for numbers in packs)


def layout(lengths: Sequence[int], pack_tokens: int, ranks: int, *, cost: Cost) -> Layout:
    """Packs for all ranks, the dearest first, so that those which run at once cost about the same.

    The shortest of three by `span`: sequences are spread over ranks by tokens or by cost, and each
    rank packs its own; or packs of all sequences are dealt out. The first is mostly best, since
    full packs are alike on all ranks; the last has a bound, and is shorter by some 5 in 100 where
    many sequences fill a pack alone. One rank waits for nobody, and keeps the order of `pack`.
    """
    if ranks == 1:
        return [pack(lengths, pack_tokens)]
    costs = [cost(length) for length in lengths]
    tries = (
        spread(lengths, pack_tokens, ranks, load=lengths),
        spread(lengths, pack_tokens, ranks, load=costs),
        dealt(pack(lengths, pack_tokens), ranks, costs=costs),
    )
    return min((by_cost(packs, costs) for packs in tries), key=lambda packs: span(packs, costs))


def spread(
    lengths: Sequence[int], pack_tokens: int, ranks: int, *, load: Sequence[float]
) -> Layout:
    """The sequence of the largest load first, to the rank that has least; then each rank packs."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for number in sorted(range(len(lengths)), key=lambda n: -load[n]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += load[number]
    return [
        [[mine[n] for n in numbers] for numbers in pack([lengths[n] for n in mine], pack_tokens)]
        for mine in map(sorted, shares)
    ]


def dealt(packs: Sequence[list[int]], ranks: int, *, costs: Sequence[float]) -> Layout:
    """Packs in order of their cost, one to each rank a pass; the dearest to who has had least.

    Since none of a pass is dearer than any of the pass before, the `span` is at most the mean cost
    of a rank and the dearest pack.
    """
    ordered = sorted(packs, key=lambda numbers: -_total(numbers, costs))
    shares: Layout = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for first in range(0, len(packs), ranks):
        free = sorted(range(ranks), key=lambda rank: (loads[rank], rank))
        for rank, numbers in zip(free, ordered[first : first + ranks], strict=False):
            shares[rank].append(numbers)
            loads[rank] += _total(numbers, costs)
    return shares


def by_cost(packs: Layout, costs: Sequence[float]) -> Layout:
    """Each rank's packs, the dearest first, and empty ones where another has more.

    Of all orders this has the shortest `span`.
    """
    most = max(map(len, packs))
    return [
        sorted(mine, key=lambda numbers: -_total(numbers, costs)) + [[]] * (most - len(mine))
        for mine in packs
    ]


def span(packs: Layout, costs: Sequence[float]) -> float:
    """What ranks take together, who wait for each other: the dearest pack of each pass, summed."""
    passes = zip(*packs, strict=True)
    return sum(max(_total(numbers, costs) for numbers in at_once) for at_once in passes)


def _total(numbers: Sequence[int], costs: Sequence[float]) -> float:
    return sum(costs[n] for n in numbers)

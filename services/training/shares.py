"""The packs of a step, shared out among ranks: as many on each, at about the same cost. † torch

A collective inside a pass needs every rank in it, so a rank with fewer packs gets dummies: two
tokens of weight 0, in the graph like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.protocols import Pack
from services.training.packing import BY_TOKENS, Cost, layout


def share(
    packs: Sequence[Pack], ranks: int, pack_tokens: int, *, cost: Cost = BY_TOKENS
) -> list[list[Pack]]:
    """Packs anew, of at most `pack_tokens`, by rank; their sequences keep their numbers."""
    sequences = [one for each in packs for one in apart(each)]
    lengths = [one.ids.numel() for one in sequences]
    return [
        [
            joined([sequences[n] for n in numbers]) if numbers else dummy(sequences[0])
            for numbers in mine
        ]
        for mine in layout(lengths, pack_tokens, ranks, cost=cost)
    ]


def apart(packed: Pack) -> list[Pack]:
    """The pack's sequences, each as a pack."""
    starts = (packed.positions == 0).nonzero().flatten().tolist()
    lengths = [
        end - start for start, end in zip(starts, [*starts[1:], packed.ids.numel()], strict=True)
    ]
    kept = [int(counts.sum()) for counts in torch.split(packed.kept_counts, lengths)]
    columns = packed._asdict()
    parts = [
        torch.split(column, kept if name == "kept_ids" else lengths)
        for name, column in columns.items()
    ]
    return [Pack(*columns) for columns in zip(*parts, strict=True)]


def joined(packs: Sequence[Pack]) -> Pack:
    """All of their sequences in one pack."""
    return Pack(*map(torch.cat, zip(*packs, strict=True)))


def dummy(like: Pack) -> Pack:
    """Two tokens of which the second is predicted, for nothing; columns as wide as those of `like`.

    Every number is 0 but the temperature.
    """
    nothing = Pack(*(column.new_zeros((2, *column.shape[1:])) for column in like))
    return nothing._replace(
        positions=torch.arange(2),
        temperature=nothing.temperature + 1,
        kept_ids=nothing.kept_ids[:0],
    )

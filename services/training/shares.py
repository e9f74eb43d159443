"""The packs of a step, shared out among ranks: as many on each, about as many tokens. † torch

A collective inside a pass needs every rank in it, so a rank with fewer packs gets dummies: two
tokens of weight 0, in the graph like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.protocols import Pack
from services.training.packing import pack, spread


def share(packs: Sequence[Pack], ranks: int, pack_tokens: int) -> list[list[Pack]]:
    """Packs anew, of at most `pack_tokens`, by rank; their sequences keep their numbers."""
    sequences = [one for each in packs for one in apart(each)]
    lengths = [one.ids.numel() for one in sequences]
    shares = [
        [
            joined([sequences[mine[n]] for n in numbers])
            for numbers in pack([lengths[n] for n in mine], pack_tokens)
        ]
        for mine in spread(lengths, ranks)
    ]
    most = max(map(len, shares))
    return [each + [dummy()] * (most - len(each)) for each in shares]


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
    return Pack(*(torch.cat(column) for column in zip(*packs, strict=True)))


def dummy() -> Pack:
    """Two tokens of which the second is predicted, for nothing."""
    ids, numbers = torch.zeros(2, dtype=torch.int64), torch.zeros(2)
    return Pack(
        ids=ids,
        positions=torch.arange(2),
        sequence=ids,
        temperature=numbers + 1,
        behaviour=numbers,
        advantage=numbers,
        weight=numbers,
        lag=ids,
        kept_counts=ids,
        kept_ids=ids[:0],
    )

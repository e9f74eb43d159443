"""The sequences of a step, shared out among ranks: as many packs on each, at about the same cost.
† torch

What a rank is sent is its plan; the packs it makes itself, from the cargo in the step's record.
"""

from __future__ import annotations

from contextlib import closing

from msgspec import Struct

from pipeline.protocols import Pack
from pipeline.recorded import Lying, Place
from services.training.batch import Batch
from services.training.packing import BY_TOKENS, Cost, layout
from services.training.planned import Copied, Planned
from services.training.records import Record
from services.training.sequences import dummy, imitated, joined, sampled


class Share(Struct, frozen=True, kw_only=True):
    """A rank's part of a step: its packs, of which some may be empty, and where their cargo lies:
    in files whose names begin with `stem`.
    """

    packs: list[list[Planned | Copied]]
    places: dict[str, Place]
    stem: str
    likeliest: int


def share(
    batch: Batch, record: Record, stem: str, *, ranks: int, pack_tokens: int, cost: Cost = BY_TOKENS
) -> list[Share]:
    """For each rank, packs of at most `pack_tokens`; the sequences keep their numbers."""
    lengths = [one.tokens for one in batch.sequences]
    planned = [
        [[batch.sequences[n] for n in numbers] for numbers in mine]
        for mine in layout(lengths, pack_tokens, ranks, cost=cost)
    ]
    return [
        Share(packs=packs, places=_needed(packs, record), stem=stem, likeliest=batch.likeliest)
        for packs in planned
    ]


def made(share: Share) -> list[Pack]:
    """The packs, on the rank whose share it is. Raises SluiceError for cargo that is not there."""
    with closing(Lying(share.stem, share.places)) as cargo:
        return [
            joined([_pack(one, cargo, share.likeliest) for one in planned])
            if planned
            else dummy(share.likeliest)
            for planned in share.packs
        ]


def _pack(one: Planned | Copied, cargo: Lying, likeliest: int) -> Pack:
    if isinstance(one, Copied):
        return imitated(one, likeliest=likeliest)
    return sampled(one, *cargo.member(one.group, one.member), likeliest=likeliest)


def _needed(packs: list[list[Planned | Copied]], record: Record) -> dict[str, Place]:
    groups = {one.group for pack in packs for one in pack if isinstance(one, Planned)}
    return {group: record.places[group] for group in sorted(groups)}

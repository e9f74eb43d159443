"""Sequences into packs, by their lengths alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence


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


def spread(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """The sequences' numbers by rank, with about as many tokens on each; ascending on each.

    The longest first, to whoever has least; equal lengths in their order, so that the same lengths
    are always spread alike.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += lengths[number]
    return [sorted(share) for share in shares]

"""In which order the data set is walked: arithmetic on the cursor, so that resuming costs nothing.

Every epoch has a permutation of its own, computed place by place: nothing is shuffled or kept,
and any number of processes on any release of Python agree on it.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


def index(cursor: int, *, size: int, seed: int) -> int:
    """The place in a data set of `size` examples that the cursor, which only grows, stands for."""
    epoch, position = divmod(cursor, size)
    return permute(position, size=size, key=f"{seed}/{epoch}")


def permute(position: int, *, size: int, key: str) -> int:
    """Where `position` in [0, size) goes: a permutation of that range, chosen by `key`.

    A Feistel network of four rounds (Luby and Rackoff, 1988) permutes the next power of four;
    what falls outside the range is sent on until it falls inside (cycle walking: Black and
    Rogaway, 2002), less than four times on average.
    """
    half = ((size - 1).bit_length() + 1) // 2
    while True:
        position = _feistel(position, half=half, key=key)
        if position < size:
            return position


def _feistel(number: int, *, half: int, key: str) -> int:
    mask = (1 << half) - 1
    left, right = number >> half, number & mask
    for turn in range(_ROUNDS):
        digest = hashlib.blake2b(f"{key}/{turn}/{right}".encode(), digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
    return left << half | right

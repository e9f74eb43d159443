"""A scorer whose rewards of one group are never alike, so that no group is dropped.

For `chaos`, and for tests that count every member.
"""

from __future__ import annotations

import hashlib

from pipeline.protocols import Answer


def by_hash(answer: Answer) -> float:
    """A number in [0, 1) that follows from the prompt and the tokens."""
    told = f"{answer.prompt}|{answer.ids}".encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=4).digest(), "big") / 2**32

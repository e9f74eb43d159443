"""One sentence about a run, and the words that sentences share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_NAMES = 3


class Finding(NamedTuple):
    """`kind` and `who` stay the same while the numbers of the sentence change.

    `grave`: something is wrong, and not just slow.
    """

    kind: str
    who: str
    sentence: str
    grave: bool = True


def plural(number: int, noun: str) -> str:
    """1 lease, 2 leases."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """a; a and b; a, b and c; a, b, c and 2 more."""
    shown, more = names[:MOST_NAMES], len(names) - MOST_NAMES
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def megabytes(size: float) -> str:
    """12 MB, 1,234 MB."""
    return f"{size / 1e6:,.0f} MB"

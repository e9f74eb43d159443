"""How tokens end. Pure sums; the bus keeps the run's ledger, the trainer fills most of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

GENERATED = "generated"


class Sum(NamedTuple):
    """Members and tokens that share a fate."""

    members: int
    tokens: int


Fates = dict[str, Sum]
"""Fate to sum; `generated` is no fate but the other side of the balance."""


def total(parts: Iterable[Mapping[str, Sum]]) -> Fates:
    """The parts added up, fate by fate."""
    out: Fates = {}
    for part in parts:
        for fate, (members, tokens) in part.items():
            before = out.get(fate, Sum(0, 0))
            out[fate] = Sum(before.members + members, before.tokens + tokens)
    return out


def in_flight(ledger: Mapping[str, Sum]) -> int:
    """Tokens generated that have no fate yet; 0 once nothing is alive, negative never."""
    generated = ledger.get(GENERATED, Sum(0, 0)).tokens
    return generated - sum(s.tokens for fate, s in ledger.items() if fate != GENERATED)

"""How tokens end. Pure sums; the bus keeps the run's ledger, the trainer fills most of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

GENERATED = "generated"

FLAWS = (
    "prompt_length",
    "prompt_temperature",
    "prompt_token_unknown",
    "empty_prompt",
    "empty_completion",
    "token_unknown",
    "logprob_length",
    "nonfinite_logprob",
    "positive_logprob",
    "span_length",
    "mask_range",
    "kept_length",
    "kept_token_unknown",
    "kept_order",
    "kept_without_token",
    "kept_missing",
)
"""Fates of members that are not whole."""

FATES = (
    "trained",
    "undone",
    "skipped",
    "zero_signal",
    "stale",
    "future_version",
    "orphan_version",
    "masked",
    "scorer_error",
    "failed",
    "cut",
    "surplus",
    "expired",
    "late",
    "duplicate",
    "superseded",
    "cancelled",
    *FLAWS,
)
"""How a token can end: what each means is in docs/glossary.md."""


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


def generated(ledger: Mapping[str, Sum]) -> int:
    """Tokens that came out of engines."""
    return ledger.get(GENERATED, Sum(0, 0)).tokens


def in_flight(ledger: Mapping[str, Sum]) -> int:
    """Tokens generated that have no fate yet; 0 once nothing is alive, negative never."""
    return generated(ledger) - sum(s.tokens for fate, s in ledger.items() if fate != GENERATED)

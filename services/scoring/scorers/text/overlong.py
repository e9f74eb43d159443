"""A penalty for answers that come near their longest length: shaping, and no outcome."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import Why


def overlong(answer: Answer, *, cache: Annotated[int, Meta(ge=1)]) -> Verdict:
    """-max(0, (tokens - (max_tokens - cache)) / cache), at least -1 (DAPO, Yu et al., 2025).

    `cache` is over how many of the last tokens it grows from 0 to -1. Since the outcome is that of
    the first scorer, it stands behind another. Raises ValueError where `max_tokens` is not known.
    """
    if answer.max_tokens < 1:
        raise ValueError("it is not known how long the answer could be")
    over = len(answer.ids) - (answer.max_tokens - cache)
    if over <= 0:
        return Verdict(reward=0.0, outcome=0.0)
    return Verdict(reward=-min(1.0, over / cache), outcome=0.0, reason=Why.TOO_LONG)

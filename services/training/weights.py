"""What each member and token weighs in a step, before any gradient. Torch-free.

The weight of a token is loss mask x aggregation x 1/N: made once a step, over all its micro-batches
and ranks, from what is known before the forward pass. What a correction takes out stays in N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pipeline.run import Run

Aggregation = Literal["token", "sequence", "constant"]


class Treatment(NamedTuple):
    """How RUN.toml treats tokens, truncated members, and groups whose outcomes are alike."""

    aggregation: Aggregation = "token"
    truncated: Literal["keep", "zero", "mask"] = "keep"
    zero_signal: Literal["drop", "keep"] = "drop"


AS_GRADED = Treatment()


def treatment(run: Run) -> Treatment:
    """As RUN.toml says."""
    return Treatment(
        aggregation=run.objective.aggregation,
        truncated=run.objective.truncated,
        zero_signal=run.objective.zero_signal,
    )


class Counted(NamedTuple):
    """A member of the step: its group, how many tokens of it are inside the loss, and how many the
    whole group could have had: members times the longest completion.
    """

    group: str
    tokens: int
    room: int


def token_weights(members: Sequence[Counted], aggregation: Aggregation) -> list[float]:
    """What each token of each member weighs.

    token: 1 / tokens of the step. sequence: 1 / (members of the step times its own tokens).
    constant: 1 / (groups times n times max_tokens), so that no length weighs (Liu et al., 2025).
    """
    match aggregation:
        case "token":
            each = 1 / max(1, sum(one.tokens for one in members))
            return [each] * len(members)
        case "sequence":
            return [1 / (len(members) * max(1, one.tokens)) for one in members]
        case "constant":
            rooms = {one.group: one.room for one in members}
            return [1 / max(1, sum(rooms.values()))] * len(members)

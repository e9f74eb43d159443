"""Composes what a step minimises: a loss per token, times its weight, summed. † torch

The weight is made once per step (`batch`), so there is no denominator here. The anchor is the
behaviour policy: the gap between engine and trainer is counted once, in the loss's own ratio.
"""

from __future__ import annotations

import torch
from msgspec import Struct
from torch import Tensor

from pipeline.model.packed import moved
from pipeline.protocols import Loss, Pack, Tokens


def aligned(pack: Pack, logp: Tensor) -> Tokens:
    """What a loss sees of a pack, given log-probs [T].

    Outside the loss both log-probs are 0: what stands there, finite or not, never enters an exp,
    and no gradient leaves.
    """
    pack = moved(pack, logp.device)
    inside, nothing = pack.weight > 0, torch.zeros_like(logp)
    behaviour = torch.where(inside, pack.behaviour, nothing)
    return Tokens(
        logp=torch.where(inside, logp, nothing),
        anchor=behaviour,
        behaviour=behaviour,
        advantage=pack.advantage,
        weight=pack.weight,
        sequence=pack.sequence,
        lag=pack.lag,
    )


class Objective(Struct, frozen=True):
    """The scalar of one pack; those of all packs of a step add up to the step's."""

    loss: Loss

    def __call__(self, pack: Pack, logp: Tensor) -> Tensor:
        """The sum of loss times weight over the pack's tokens, given their log-probs [T]."""
        tokens = aligned(pack, logp)
        return (self.loss(tokens) * tokens.weight).sum()

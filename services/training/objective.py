"""Composes what a step minimises: a loss per token, corrected and weighted, summed. † torch

The weight is made once per step (`batch`), so there is no denominator here: what a correction takes
out stays in it. The gap between engine and trainer is counted once, in the ratio of a loss that is
anchored at the behaviour policy, or in a correction where it is anchored at the trainer's own.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from msgspec import Struct
from torch import Tensor

from pipeline import plugins
from pipeline.anchor import check_anchor
from pipeline.model.packed import moved
from pipeline.protocols import CORRECTIONS, LOSSES, Correction, Loss, Pack, Tokens
from pipeline.run import Run
from services.training.corrections import none

log = logging.getLogger(__name__)


class Objective(Struct, frozen=True):
    """The scalar of one pack; those of all packs of a step add up to the step's."""

    loss: Loss
    correction: Correction = none
    anchor: Literal["behaviour", "proximal"] = "behaviour"

    def __call__(self, pack: Pack, logp: Tensor) -> Tensor:
        """The sum of loss x correction x weight over the pack's tokens, given log-probs [T]."""
        tokens = self.aligned(pack, logp)
        return (self.loss(tokens) * self.correction(tokens).detach() * tokens.weight).sum()

    def aligned(self, pack: Pack, logp: Tensor) -> Tokens:
        """What a loss sees of a pack, given log-probs [T] under the weights before the step.

        Outside the loss all log-probs are 0: what stands there, finite or not, never enters an
        exp, and no gradient leaves. A batch has one step, so the proximal policy is the current.
        """
        pack = moved(pack, logp.device)
        inside, nothing = pack.weight > 0, torch.zeros_like(logp)
        behaviour = torch.where(inside, pack.behaviour, nothing)
        policy = torch.where(inside, logp, nothing)
        return Tokens(
            logp=policy,
            anchor=behaviour if self.anchor == "behaviour" else policy.detach(),
            behaviour=behaviour,
            advantage=pack.advantage,
            weight=pack.weight,
            sequence=pack.sequence,
            lag=pack.lag,
        )


def compose(run: Run) -> Objective:
    """As RUN.toml says. Raises ConfigError for what cannot be had, or counts the gap twice."""
    if said := check_anchor(run.objective):
        log.warning(said)
    return Objective(
        loss=plugins.build(LOSSES, run.objective.loss, at="objective.loss"),
        correction=plugins.build(CORRECTIONS, run.objective.correction, at="objective.correction"),
        anchor=run.objective.anchor,
    )

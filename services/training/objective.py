"""Composes what a step minimises: a loss per token, corrected and weighted, summed. † torch

The weights are made once per step (`batch`), so there is no denominator here: what a correction
takes out stays in it. The gap between engine and trainer is counted once, in the ratio of a loss
that is anchored at the behaviour policy, in a correction where it is anchored at the trainer's own,
or in part by each where the anchor is between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from pipeline import plugins
from pipeline.anchor import check_anchor, corrections_of
from pipeline.errors import ConfigError
from pipeline.families import CORRECTIONS, DIVERGENCES, LOSSES
from pipeline.model.packed import moved
from pipeline.protocols import Correction, Loss, Pack, Tokens, Wide
from pipeline.run import Objective as Settings
from pipeline.run import Run
from services.training.corrections import Normalised, none, product
from services.training.ratios import clamped
from services.training.streams import distillation, imitation

log = logging.getLogger(__name__)


class Objective(Struct, frozen=True):
    """The scalar of one pack; those of all packs of a step add up to the step's."""

    loss: Loss
    correction: Correction = none
    anchor: Literal["behaviour", "proximal", "interpolated"] = "behaviour"
    kl: Loss | None = None
    refer: Callable[[Pack], Pack] | None = None
    """Fills in what the reference model makes of a pack's tokens, where `kl` asks for one."""

    def __call__(self, pack: Pack, logp: Tensor, among: Tensor | None = None) -> Tensor:
        """The sum over the pack's tokens of all streams, given log-probs [T]: loss x correction x
        weight, and what `streams` adds, where `among` [T, k] is of the teacher's likeliest ids.
        """
        pack = moved(pack, logp.device)
        tokens = self.aligned(pack, logp)
        losses = self.loss(tokens) * self.correction(tokens).detach()
        if self.kl is not None:
            losses = losses + self.kl(tokens)
        return (losses * tokens.weight).sum() + self._beside(pack, logp, among)

    def _beside(self, pack: Pack, logp: Tensor, among: Tensor | None) -> Tensor:
        """What the streams beside the policy gradient add; a dummy's 0 stays in the graph."""
        copied = (imitation(pack, logp) * pack.ce_weight).sum()
        if not (pack.kl_weight > 0).any():
            return copied + (0.0 if among is None else among.sum() * 0)
        learnt = distillation(pack, self.aligned(pack._replace(weight=pack.kl_weight), logp), among)
        return copied + (learnt * pack.kl_weight).sum()

    def aligned(self, pack: Pack, logp: Tensor) -> Tokens:
        """What a loss sees of a pack, given log-probs [T] under the weights before the step.

        Outside the loss all log-probs are 0: what stands there, finite or not, never enters an
        exp, and no gradient leaves. A batch has one step, so the proximal policy is the current.
        """
        pack = moved(pack, logp.device)
        inside, nothing = pack.weight > 0, torch.zeros_like(logp)
        policy, behaviour, reference, teacher = (
            torch.where(inside, column, nothing)
            for column in (logp, pack.behaviour, pack.reference, pack.teacher)
        )
        return Tokens(
            logp=policy,
            anchor=self.anchored(policy.detach(), behaviour, pack.lag),
            behaviour=behaviour,
            advantage=pack.advantage,
            weight=pack.weight,
            sequence=pack.sequence,
            lag=pack.lag,
            score=pack.score,
            segment=pack.segment,
            reference=reference,
            teacher=teacher,
        )

    def anchored(self, policy: Tensor, behaviour: Tensor, lag: Tensor) -> Tensor:
        """Interpolated: as far from mu to pi as the step before this one is, from the step that
        made the token's version to the one that this step makes; mu at lag 0 (AReaL, 2025)."""
        if self.anchor == "behaviour":
            return behaviour
        if self.anchor == "proximal":
            return policy
        lags = lag.clamp(min=0)
        return behaviour + lags / (lags + 1) * clamped(policy - behaviour)

    @property
    def wide(self) -> list[Wide]:
        """Its parts that must see the whole step first."""
        return [part for part in (self.loss, self.correction) if isinstance(part, Wide)]

    def look(self, pack: Pack, logp: Tensor) -> list[Tensor]:
        """What a pack of the step tells the wide parts, given log-probs [T] before it."""
        tokens = self.aligned(pack, logp)
        return [part.look(tokens) for part in self.wide]

    def told(self, rows: Sequence[Tensor]) -> Objective:
        """The objective of this step, given what all packs and ranks have told each wide part."""
        known = dict(zip(map(id, self.wide), rows, strict=True))
        loss, correction = (
            part.told(known[id(part)]) if isinstance(part, Wide) else part
            for part in (self.loss, self.correction)
        )
        return replace(self, loss=loss, correction=correction)


def compose(run: Run) -> Objective:
    """As RUN.toml says. Raises ConfigError for what cannot be had, or counts the gap twice."""
    settings = run.objective
    if said := check_anchor(settings):
        log.warning(said)
    return Objective(
        loss=plugins.build(LOSSES, settings.loss, at="objective.loss"),
        correction=_correction(settings),
        anchor=settings.anchor,
        kl=plugins.build(DIVERGENCES, settings.kl, at="objective.kl") if settings.kl else None,
    )


def _correction(settings: Settings) -> Correction:
    several = [
        plugins.build(CORRECTIONS, spec, at="objective.correction")
        for spec in corrections_of(settings)
    ]
    if (len(several) > 1 or settings.normalise) and any(isinstance(c, Wide) for c in several):
        rule = "has a part that sees the whole step first, which is shown to one alone"
        remedy = "name that part alone, without objective.normalise"
        raise ConfigError("objective.correction", settings.correction, rule=rule, remedy=remedy)
    all_: Correction = several[0] if len(several) == 1 else partial(product, of=several)
    return Normalised(all_) if settings.normalise else all_

"""The two streams beside the policy gradient's: tokens to imitate, tokens to distil. † torch

Each has its own count: a batch's scalar is Σ loss / N + c Σ ce / N_ce + c Σ kl / N_kl, where the
weights c / N of its packs are made once a step, in `batch`. There is no advantage and no
ratio for what is imitated. The terms' formulas are in `divergence`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from pipeline.protocols import Pack, Packed, Tokens
from pipeline.run import Objective
from services.training.divergence import distilled, top_k


class Coefficients(NamedTuple):
    """What the streams weigh beside the policy gradient, which weighs 1; 0: there is none."""

    imitation: float = 0.0
    distillation: float = 0.0


POLICY_ALONE = Coefficients()


def coefficients(settings: Objective) -> Coefficients:
    """As RUN.toml says."""
    imitation, distillation = settings.imitation, settings.distillation
    return Coefficients(
        imitation=imitation.coefficient if imitation else 0.0,
        distillation=distillation.coefficient if distillation else 0.0,
    )


def imitation(pack: Pack, logp: Tensor) -> Tensor:
    """Cross-entropy: -log p of each token [T] that is imitated, 0 at all others."""
    return -torch.where(pack.ce_weight > 0, logp, 0.0)


def distillation(pack: Pack, tokens: Tokens, among: Tensor | None) -> Tensor:
    """Of each token [T]: over the teacher's likeliest ids where they are known, else of its own.

    `among` [T, k] are the policy's log-probs of those; `tokens` are what is to be distilled.
    """
    single = distilled(tokens)
    if among is None:
        return single
    known = (pack.teacher_logprobs > -torch.inf).any(-1)
    return torch.where(known, top_k(among, pack.teacher_logprobs), single)


class StreamSums(Struct, frozen=True, array_like=True):
    """What one rank has added up of its packs: tokens and unweighted losses."""

    imitated: float = 0.0
    ce: float = 0.0
    distilled: float = 0.0
    kl: float = 0.0

    def __add__(self, other: StreamSums) -> StreamSums:
        """Of both."""
        return StreamSums(
            self.imitated + other.imitated,
            self.ce + other.ce,
            self.distilled + other.distilled,
            self.kl + other.kl,
        )

    def summary(self) -> dict[str, float]:
        """As metrics.jsonl names them. `kl` is in nats a token: of single tokens policy - teacher,
        else the share of the divergence that the teacher's likeliest ids have.
        """
        return {
            "imitated_tokens": self.imitated,
            "ce_loss": self.ce / max(1.0, self.imitated),
            "distilled_tokens": self.distilled,
            "kl_loss": self.kl / max(1.0, self.distilled),
        }


def sums(pack: Pack, seen: Packed) -> StreamSums:
    """Of a pack, given log-probs and those of a teacher's ids as they were before the step."""
    ce, kl = pack.ce_weight > 0, pack.kl_weight > 0
    gap = seen.logp - pack.teacher
    if seen.among is not None:
        known = (pack.teacher_logprobs > -torch.inf).any(-1)
        gap = torch.where(known, top_k(seen.among, pack.teacher_logprobs), gap)
    return StreamSums(
        float(ce.sum()),
        float(-seen.logp[ce].double().sum()),
        float(kl.sum()),
        float(gap[kl].double().sum()),
    )

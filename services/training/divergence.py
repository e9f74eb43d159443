"""How far a policy is from a reference or from its teacher, per token: `Tokens` to [T]. † torch

Terms to be minimised beside a policy loss, or instead of one. pi, mu, sg: see `losses`. In the
reward k1 has its place; as a loss its gradient is 0 in expectation, so it is not here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.protocols import Tokens
from services.training.ranges import Positive
from services.training.ratios import clamped, ratio


def k2(tokens: Tokens, *, coefficient: Positive) -> Tensor:
    """coefficient (pi - ref)^2 / 2 (Schulman, 2020). Bound: 20 coefficient."""
    return coefficient / 2 * clamped(tokens.logp - tokens.reference).square()


def k3(tokens: Tokens, *, coefficient: Positive, cap: Positive = 5.0) -> Tensor:
    """coefficient w (exp x - x - 1), w = exp(pi - mu), x = ref - pi: unbiased (DeepSeek-V3.2).

    Its gradient is w (pi - ref), and is given as that: the terms e^x of a sum would cancel. w is at
    most `cap`, beyond which it is a constant of the gradient. Bound: 20 cap coefficient.
    """
    x = clamped(tokens.reference - tokens.logp.detach())
    weight = ratio(tokens.logp.detach(), tokens.behaviour).clamp(max=cap)
    own = tokens.logp - tokens.logp.detach()
    return coefficient * weight * ((x.expm1() - x) - x * own)


def distilled(tokens: Tokens, *, delta: Positive = 0.2, cap: Positive = 5.0) -> Tensor:
    """-sg(min(r, cap) A) pi with A = teacher - pi and r = exp(pi - mu), else 0 where q - p > delta.

    On-policy distillation (Thinking Machines, 2025): the gradient of the reverse KL, by single
    tokens. Where the policy has become less likely than the one that sampled by more than delta in
    probability, it is left alone. Bound: 20 cap.
    """
    logp = tokens.logp.detach()
    keep = tokens.behaviour.exp() - logp.exp() <= delta
    advantage = clamped(tokens.teacher - logp)
    weight = torch.where(keep, ratio(logp, tokens.behaviour).clamp(max=cap), 0.0)
    return -weight * advantage * tokens.logp


def top_k(logp: Tensor, teacher: Tensor) -> Tensor:
    """[T, k] log-probs of the teacher's likeliest ids under the policy and the teacher, to [T].

    The sum of p_teacher (teacher - pi): the forward KL as far as these ids have it; ids that are
    padding have teacher -inf. Bound: 1 in each token's k log-probs together.
    """
    there = teacher > -torch.inf
    known, own = (torch.where(there, column, 0.0) for column in (teacher, logp))
    return (known.exp() * (known - own)).sum(-1)

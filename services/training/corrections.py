"""Corrections for tokens that another policy sampled: `Tokens` to a weight per token [T]. † torch

For a loss whose ratio does not see all of the gap: l = anchor - mu is what is left of it, mu being
the log-prob under the policy that sampled. Weights bring importance in, up to a bound; masks take
out what has gone too far, and what they take out stays in the denominator. One of whole sequences
is made for each, and not for a packed row; `over = "segment"` makes it for each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pipeline.protocols import Correction, Tokens
from services.training.ranges import NotNegative, Over, Positive
from services.training.ratios import clamped, largest, mean, total

CAPS = {"token": 2.0, "sequence": 5.0, "geometric": 2.0}
"""Of `tis`, by its level."""
MOST = 10.0
"""By how much `Normalised` may raise weights."""


def none(tokens: Tokens) -> Tensor:
    """1."""
    return torch.ones_like(tokens.logp)


def tis(
    tokens: Tokens,
    *,
    level: Literal["token", "sequence", "geometric"] = "token",
    cap: Positive | None = None,
    over: Over = "sequence",
) -> Tensor:
    """Truncated importance sampling (Yao et al., 2025): min(exp l, cap), in [0, cap].

    `sequence` has the sum of l over the tokens inside the loss, `geometric` their mean; at 1,000
    tokens the sum is so far off that the weight is 0 or `cap`. Without a cap: 2, 5 and 2.
    """
    gap = _gap(tokens)
    if level != "token":
        gap = (total if level == "sequence" else mean)(gap, tokens, over)
    return clamped(gap).exp().clamp(max=CAPS[level] if cap is None else cap)


def icepop(tokens: Tokens, *, low: NotNegative = 0.5, high: Positive = 5.0) -> Tensor:
    """exp l inside [low, high], else 0 (Ling Team, 2025); many take [.5, 2]."""
    weight = clamped(_gap(tokens)).exp()
    return torch.where((low <= weight) & (weight <= high), weight, 0.0)


def mask_geometric(
    tokens: Tokens, *, low: NotNegative = 0.99, high: Positive = 1.01, over: Over = "sequence"
) -> Tensor:
    """1 where exp(the mean of l over the sequence) lies in [low, high], else 0 (Liu et al., 2025).

    So narrow a band is for a gap of rounding alone; late tokens want a wider one.
    """
    weight = clamped(mean(_gap(tokens), tokens, over)).exp()
    return ((low <= weight) & (weight <= high)).to(weight.dtype)


def mask_k(
    tokens: Tokens,
    *,
    bound: Positive,
    kind: Literal["k1", "k2", "k3"] = "k3",
    level: Literal["token", "mean", "sum", "max"] = "token",
    over: Over = "sequence",
) -> Tensor:
    """1 where |k| is at most `bound`, else 0: k1 = -l, k2 = l^2/2, k3 = exp l - 1 - l (as in verl).

    k of the token, or the mean, the sum or the largest |k| of its sequence. The estimators are
    Schulman's (2020).
    """
    gap = clamped(_gap(tokens))
    k = {"k1": -gap, "k2": gap.square() / 2, "k3": gap.expm1() - gap}[kind]
    if level == "max":
        k = largest(k.abs(), tokens, over)
    elif level != "token":
        k = (mean if level == "mean" else total)(k, tokens, over)
    return (k.abs() <= bound).to(gap.dtype)


def opsm(tokens: Tokens, *, delta: NotNegative = 0.01, over: Over = "sequence") -> Tensor:
    """0 where A < 0 and the mean of mu - anchor over the sequence is above delta, else 1.

    The off-policy sequence mask (DeepSeek-V3.2, 2025). It sees how engine and trainer differ on
    the same weights, too: 5e-4 to 1.5e-3 in bfloat16, above which delta must lie.
    """
    gone = mean(-_gap(tokens), tokens, over) > delta
    return (~((tokens.advantage < 0) & gone)).to(tokens.logp.dtype)


def decoupled(
    tokens: Tokens, *, cap: Positive = 5.0, above: Literal["cap", "mask"] = "cap"
) -> Tensor:
    """min(exp l, cap), or 0 above the cap; l as far as the interpolated policy (AReaL, 2025).

    The other part of the gap is in the ratio of the loss, which is anchored at the same policy.
    """
    weight = clamped(_gap(tokens)).exp()
    return weight.clamp(max=cap) if above == "cap" else torch.where(weight <= cap, weight, 0.0)


def product(tokens: Tokens, *, of: Sequence[Correction]) -> Tensor:
    """Of several corrections; at most one of them should be a weight."""
    weight = none(tokens)
    for one in of:
        weight = weight * one(tokens)
    return weight


class Normalised:
    """Another correction's weights, scaled to a mean of 1 over the step; by at most `MOST`.

    The mean is over the tokens that it leaves in. Over all of them, those would have to make up for
    the others, and the step would be as long as if nothing had been taken out.
    """

    def __init__(self, of: Correction) -> None:
        self._of, self._factor = of, 1.0

    def look(self, tokens: Tokens) -> Tensor:
        """The sum of the weights, and how many are not 0 [1, 2]."""
        weight = self._of(tokens)[tokens.weight > 0].double()
        return torch.stack([weight.sum(), (weight > 0).sum().to(weight.dtype)])[None]

    def told(self, rows: Tensor) -> Normalised:
        """The correction of this step, given the rows of all packs and ranks."""
        sum_, number = rows.sum(0).tolist()
        told = Normalised(self._of)
        told._factor = min(number / sum_, MOST) if sum_ > 0 else 1.0
        return told

    def __call__(self, tokens: Tokens) -> Tensor:
        """[T] to [T]."""
        return self._factor * self._of(tokens)


def _gap(tokens: Tokens) -> Tensor:
    """l [T], as a constant."""
    return tokens.anchor.detach() - tokens.behaviour

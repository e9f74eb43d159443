"""Policy losses: `Tokens` to a loss per token [T], to be minimised. † torch

A loss knows neither mask nor denominator. Each bounds the gradient of a token on both signs of
its advantage A; a ratio of e^20 is finite, and ruins a model. Here pi is the log-prob under the
weights that learn, mu that of the policy that sampled; anchor is the one that the ratio
r = exp(pi - anchor) is taken against, and sg stops a gradient. Those that weigh pi by a constant
have that constant times |A| for their gradient.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from pipeline.protocols import Tokens
from services.training.ranges import AboveOne, NotNegative, Positive, Share
from services.training.ratios import clamped, mean, ratio, total
from services.training.ratios import count as counted

Level = Literal["token", "sequence"]


def reinforce(tokens: Tokens) -> Tensor:
    """-A pi (Williams, 1992). Bound: |A|. It has no ratio: a gap is for a correction to see."""
    return -tokens.advantage * tokens.logp


def cispo(tokens: Tokens, *, low: NotNegative = 0.0, high: NotNegative = 5.0) -> Tensor:
    """-sg(clip(r, low, high)) A pi (MiniMax-M1, 2025). Bound: high |A|."""
    return _weighted(tokens, _ratio(tokens).clamp(low, high))


def tis_pg(tokens: Tokens) -> Tensor:
    """-sg(clip(r, 0, 1)) A pi (truncated importance sampling; IMPALA's, 2018). Bound: |A|."""
    return _weighted(tokens, _ratio(tokens).clamp(max=1.0))


def rollout_is(tokens: Tokens, *, low: NotNegative = 0.125, high: Positive = 8.0) -> Tensor:
    """-sg(r) A pi where low < r < high, else 0 (as in prime-rl, 2025). Bound: high |A|."""
    r = _ratio(tokens)
    return _weighted(tokens, torch.where((low < r) & (r < high), r, 0.0))


def topr(tokens: Tokens, *, level: Level = "token") -> Tensor:
    """-A pi where the outcome is above 0, else -sg(clip(r, 0, 1)) A pi (Le Roux et al., 2025).

    `sequence`, the paper's: r is the product over the member's tokens. Bound: |A|.
    """
    gap = tokens.logp.detach() - tokens.anchor
    if level == "sequence":
        gap = total(gap, tokens)
    tapered = clamped(gap).exp().clamp(max=1.0)
    return _weighted(tokens, torch.where(tokens.score > 0, 1.0, tapered))


def ppo(
    tokens: Tokens,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.28,
    dual_clip: AboveOne = 3.0,
) -> Tensor:
    """-min(rA, clip(r, 1 - clip_low, 1 + clip_high) A); for A < 0 at most -dual_clip A.

    Schulman et al., 2017; the higher upper clip is DAPO's (2025), the dual clip Ye et al.'s (2020).
    Bound: (1 + clip_high) |A| for A > 0, dual_clip |A| below; none there with `dual_clip` inf.
    """
    r = ratio(tokens.logp, tokens.anchor)
    return _clipped(r, tokens.advantage, low=1 - clip_low, high=1 + clip_high, dual=dual_clip)


def gspo(
    tokens: Tokens,
    *,
    clip_low: Share = 3e-4,
    clip_high: NotNegative = 4e-4,
    dual_clip: AboveOne = 3.0,
) -> Tensor:
    """As `ppo`, with s = exp(the mean of pi - anchor over the sequence) for r (Zheng et al., 2025).

    Every token of a sequence has the sequence's loss, so that weights that add up to a sequence's
    share give it that share. Bound, where they are alike within it: as of `ppo`.
    """
    s = clamped(mean(tokens.logp - tokens.anchor, tokens)).exp()
    return _clipped(s, tokens.advantage, low=1 - clip_low, high=1 + clip_high, dual=dual_clip)


def sapo(tokens: Tokens, *, positive: Positive = 1.0, negative: Positive = 1.05) -> Tensor:
    """-(4/tau) sigmoid(tau (r - 1)) A, tau by the sign of A (Qwen's soft gate, 2025).

    Bound: (1 + .9/tau) |A|, since 4 u sigmoid'(u) < .9.
    """
    tau = torch.where(tokens.advantage > 0, positive, torch.full_like(tokens.advantage, negative))
    r = ratio(tokens.logp, tokens.anchor)
    return -(4 / tau) * torch.sigmoid(tau * (r - 1)) * tokens.advantage


def kimi(tokens: Tokens, *, tau: NotNegative = 0.1, level: Level = "token") -> Tensor:
    """-A pi + (tau/2) (pi - mu)^2 (Kimi k1.5, 2025). Bound: |A| + 20 tau.

    `sequence`: the square is of the sum over the sequence, and shared out among its tokens. The
    bound then holds where their weights are alike.
    """
    gap = tokens.logp - tokens.behaviour
    if level == "token":
        square = clamped(gap).square()
    else:
        square = clamped(total(gap, tokens)).square() / counted(tokens)
    return reinforce(tokens) + tau / 2 * square


def dppo_tv(
    tokens: Tokens,
    *,
    delta: Share = 0.2,
    cap: Positive = 20.0,
    pull: NotNegative = 1e-3,
) -> Tensor:
    """-keep A sg(min(r, cap)) pi + pull (pi - mu)^2 (DPPO, 2026; prime-rl, verl and SkyRL).

    Kept unless A > 0 and p - q > delta, or A < 0 and q - p > delta: where a step would take the
    probability p further from q, that of the policy that sampled. Bound: cap |A| + 40 pull.
    """
    away = _further(tokens) * tokens.advantage.sign()
    return _kept(tokens, away <= delta, cap=cap, pull=pull)


def ipo(
    tokens: Tokens,
    *,
    delta: Share = 0.1,
    cap: Positive = 20.0,
    pull: NotNegative = 1e-3,
) -> Tensor:
    """As `dppo_tv`, kept unless |p - q| > delta (prime-rl, 2026). Bound: cap |A| + 40 pull."""
    return _kept(tokens, _further(tokens).abs() <= delta, cap=cap, pull=pull)


class M2PO:
    """-min(rA, cap A), for A < 0 at most -dual_clip A, and 0 for tokens that the step masks.

    Of the tokens that a step would take further from the policy that sampled (A (pi - mu) > 0),
    those with the largest (pi_old - mu)^2 are masked until the mean of the others is at most
    `threshold`, over the whole step (Zheng et al., 2025). This mask is there in place of a narrow
    clip. Bound: cap |A| for A > 0, dual_clip |A| below.
    """

    def __init__(
        self, *, threshold: Positive = 0.04, cap: AboveOne = 5.0, dual_clip: AboveOne = 3.0
    ) -> None:
        self._threshold, self._cap, self._dual_clip = threshold, cap, dual_clip
        self._first = math.inf

    def look(self, tokens: Tokens) -> Tensor:
        """Rows of a count and a sum of squares [n, 2]: of those within the threshold, and of each
        beyond it, since none else can be masked."""
        squares = self._squares(tokens)[(tokens.weight > 0) & _outward(tokens)]
        beyond = squares > self._threshold
        within = squares[~beyond]
        first = torch.stack([squares.new_tensor(len(within)), within.sum()])
        rest = squares[beyond]
        return torch.cat([first[None], torch.stack([torch.ones_like(rest), rest], dim=-1)])

    def told(self, rows: Tensor) -> M2PO:
        """The loss of this step, given the rows of all packs and ranks."""
        beyond = rows[:, 1] > self._threshold * rows[:, 0]
        squares = rows[beyond, 1].sort().values
        count, sum_ = rows[~beyond].sum(0)
        counts = count + torch.arange(1, len(squares) + 1)
        fit = int((sum_ + squares.cumsum(0) <= self._threshold * counts).sum())
        told = M2PO(threshold=self._threshold, cap=self._cap, dual_clip=self._dual_clip)
        told._first = float(squares[fit]) if fit < len(squares) else math.inf
        return told

    def __call__(self, tokens: Tokens) -> Tensor:
        """[T] to [T]."""
        r = ratio(tokens.logp, tokens.anchor)
        loss = _clipped(r, tokens.advantage, low=0.0, high=self._cap, dual=self._dual_clip)
        masked = _outward(tokens) & (self._squares(tokens) >= self._first)
        return torch.where(masked, 0.0, loss)

    def _squares(self, tokens: Tokens) -> Tensor:
        return clamped(tokens.logp.detach() - tokens.behaviour).double().square()


def _ratio(tokens: Tokens) -> Tensor:
    """As a constant."""
    return ratio(tokens.logp.detach(), tokens.anchor)


def _weighted(tokens: Tokens, weight: Tensor) -> Tensor:
    return weight * reinforce(tokens)


def _clipped(r: Tensor, advantage: Tensor, *, low: float, high: float, dual: float) -> Tensor:
    loss = -torch.minimum(r * advantage, r.clamp(low, high) * advantage)
    return torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)


def _further(tokens: Tokens) -> Tensor:
    """p - q, of probabilities."""
    return tokens.logp.detach().exp() - tokens.behaviour.exp()


def _outward(tokens: Tokens) -> Tensor:
    return tokens.advantage * (tokens.logp.detach() - tokens.behaviour) > 0


def _kept(tokens: Tokens, keep: Tensor, *, cap: float, pull: float) -> Tensor:
    weight = torch.where(keep, _ratio(tokens).clamp(max=cap), 0.0)
    return _weighted(tokens, weight) + pull * clamped(tokens.logp - tokens.behaviour).square()

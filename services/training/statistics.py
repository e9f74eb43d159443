"""What is logged of a step's tokens inside the loss, over the whole step and by lag. † torch

Sums are kept and divided once at the end: no mean of means. Nothing here touches a gradient.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from pipeline.protocols import Loss, Pack, Packed, Tokens
from services.training.losses import MAX_LOG_RATIO, ratio
from services.training.objective import aligned

# Order of the sums: tokens, r, r squared, k3, entropy, clipped, clamped.
_SUMS = 7
_TOLERANCE = 1e-5


class Statistics:
    """Adds up one step, pack by pack."""

    def __init__(self, loss: Loss) -> None:
        """`loss` is the objective's, to see which tokens it clips."""
        self._loss = loss
        self._sums: defaultdict[int, Tensor] = defaultdict(
            lambda: torch.zeros(_SUMS, dtype=torch.float64)
        )
        self._gap: defaultdict[int, float] = defaultdict(float)

    def add(self, pack: Pack, seen: Packed) -> None:
        """A pack of the step, and its log-probs and entropy [T] before the step."""
        tokens = aligned(pack, seen.logp.detach())
        gap = (tokens.logp - tokens.behaviour).double()
        r = ratio(tokens.logp.double(), tokens.behaviour.double())
        k3 = r - 1 - gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        clipped = self._clipped(tokens, r)
        clamped = gap.abs() > MAX_LOG_RATIO
        columns = [torch.ones_like(r), r, r * r, k3, seen.entropy, clipped, clamped]
        table = torch.stack([column.double() for column in columns], dim=-1)  # [T, _SUMS]
        for lag in torch.unique(pack.lag[pack.weight > 0]).tolist():
            at = (pack.weight > 0) & (pack.lag == lag)
            self._sums[lag] += table[at].sum(0).cpu()
            self._gap[lag] = max(self._gap[lag], gap[at].abs().max().item())

    def summary(self) -> dict[str, float]:
        """Of the whole step: ratios and shares 0 to 1, entropy in nats, lags in steps."""
        lags = {lag: int(sums[0]) for lag, sums in sorted(self._sums.items())}
        tokens = sum(lags.values())
        every = _figures(
            sum(self._sums.values(), torch.zeros(_SUMS, dtype=torch.float64)),
            max(self._gap.values(), default=0.0),
        )
        every["lag_mean"] = sum(lag * count for lag, count in lags.items()) / max(1, tokens)
        every["lag_p95"] = float(_percentile(lags, 0.95))
        every["lag_max"] = float(max(lags, default=0))
        return every

    def by_lag(self) -> dict[int, dict[str, float]]:
        """The same of the tokens of each lag, without the figures of lag itself."""
        return {lag: _figures(sums, self._gap[lag]) for lag, sums in sorted(self._sums.items())}

    def _clipped(self, tokens: Tokens, r: Tensor) -> Tensor:
        """Where the loss's gradient is not the plain -rA: known without knowing the loss."""
        with torch.enable_grad():
            logp = tokens.logp.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self._loss(tokens._replace(logp=logp)).sum(), logp)
        plain = -r * tokens.advantage
        return (gradient - plain).abs() > _TOLERANCE * plain.abs()


def _figures(sums: Tensor, gap: float) -> dict[str, float]:
    tokens, r, squares, k3, entropy, clipped, clamped = sums.tolist()
    each = max(1.0, tokens)
    return {
        "tokens": tokens,
        "ess": r * r / (each * squares) if squares else 0.0,
        "mismatch_k3": k3 / each,
        "logprob_gap_max": gap,
        "clipped_share": clipped / each,
        "clamped_share": clamped / each,
        "entropy_mean": entropy / each,
    }


def _percentile(counts: dict[int, int], share: float) -> int:
    """The least value that at least `share` of all do not exceed; counts by ascending value."""
    left = share * sum(counts.values())
    for value, count in counts.items():
        left -= count
        if left <= 0:
            return value
    return 0

"""What is logged of a step's tokens inside the loss, over the whole step. † torch

Sums are kept and divided once at the end: no mean of means. Nothing here touches a gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

from pipeline.protocols import Pack, Packed, Tokens
from services.training.losses import MAX_LOG_RATIO, ratio
from services.training.objective import Objective

# Order of the sums: tokens, r, r squared, k3, entropy, clipped, clamped.
_SUMS = 7
_TOLERANCE = 1e-5


class Sums(Struct, frozen=True, array_like=True):
    """What one rank has added up: sums, the largest gap, tokens by lag."""

    sums: tuple[float, ...]
    gap: float
    lags: dict[int, int]


class Statistics:
    """Adds up one step, pack by pack and rank by rank."""

    def __init__(self, objective: Objective) -> None:
        """`objective` is asked which tokens its loss clips."""
        self._objective = objective
        self._sums = torch.zeros(_SUMS, dtype=torch.float64)
        self._gap = 0.0
        self._lags: Counter[int] = Counter()

    def add(self, pack: Pack, seen: Packed) -> None:
        """A pack of the step, and its log-probs and entropy [T] before the step."""
        inside = pack.weight > 0
        if not inside.any():
            return
        tokens = self._objective.aligned(pack, seen.logp.detach())
        gap = (tokens.logp - tokens.behaviour).double()
        r = ratio(tokens.logp.double(), tokens.behaviour.double())
        k3 = r - 1 - gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        clipped = self._clipped(tokens)
        clamped = gap.abs() > MAX_LOG_RATIO
        columns = [torch.ones_like(r), r, r * r, k3, seen.entropy, clipped, clamped]
        table = torch.stack([column.double() for column in columns], dim=-1)  # [T, _SUMS]
        self._sums += table[inside].sum(0).cpu()
        self._gap = max(self._gap, gap[inside].abs().max().item())
        self._lags.update(pack.lag[inside].tolist())

    def sums(self) -> Sums:
        """For another rank to `merge`."""
        return Sums(tuple(self._sums.tolist()), self._gap, dict(self._lags))

    def merge(self, others: Sums) -> None:
        """Another rank's packs of the same step."""
        self._sums += torch.tensor(others.sums, dtype=torch.float64)
        self._gap = max(self._gap, others.gap)
        self._lags.update(others.lags)

    def tokens_by_lag(self) -> list[tuple[int, int]]:
        """Pairs of a lag, in steps, and the number of tokens that had it."""
        return sorted(self._lags.items())

    def summary(self) -> dict[str, float]:
        """As metrics.jsonl names them: shares are of 1, entropy is in nats, lags are in steps."""
        tokens, r, squares, k3, entropy, clipped, clamped = self._sums.tolist()
        each = max(1.0, tokens)
        return {
            "ess": r * r / (each * squares) if squares else 0.0,
            "mismatch_k3": k3 / each,
            "gap_max": self._gap,
            "clipped": clipped / each,
            "clamped": clamped / each,
            "entropy": entropy / each,
            "lag_mean": sum(lag * count for lag, count in self._lags.items()) / each,
            "lag_p95": float(_percentile(self._lags, 0.95)),
            "lag_max": float(max(self._lags, default=0)),
        }

    def _clipped(self, tokens: Tokens) -> Tensor:
        """Where the loss's gradient is not the plain -rA: known without knowing the loss."""
        with torch.enable_grad():
            logp = tokens.logp.clone().requires_grad_()
            losses = self._objective.loss(tokens._replace(logp=logp))
            (gradient,) = torch.autograd.grad(losses.sum(), logp)
        plain = -ratio(tokens.logp.double(), tokens.anchor.double()) * tokens.advantage
        return (gradient - plain).abs() > _TOLERANCE * plain.abs()


def _percentile(counts: Mapping[int, int], share: float) -> int:
    """The least value that at least `share` of all do not exceed."""
    left = share * sum(counts.values())
    for value, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return value
    return 0

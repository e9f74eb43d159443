"""What is logged of a step's tokens inside the loss, over the whole step and by lag. † torch

Sums are kept and divided once at the end: no mean of means. Nothing here touches a gradient.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

from pipeline.protocols import Pack, Packed, Tokens
from services.training.metrics import LAG_BUCKETS, LAG_BUCKETS_TO
from services.training.objective import Objective
from services.training.ratios import MAX_LOG_RATIO, clamped, ratio
from services.training.streams import StreamSums, sums

# Order of the sums: tokens, r, r squared, k3, entropy, clipped, trust-masked, clamped, KL term.
_SUMS = 9
_TOLERANCE = 1e-5


class Sums(Struct, frozen=True, array_like=True):
    """What one rank has added up: sums and the largest gap by bucket of lags, tokens by lag."""

    sums: tuple[tuple[float, ...], ...]
    gaps: tuple[float, ...]
    lags: dict[int, int]
    streams: StreamSums = StreamSums()


class Statistics:
    """Adds up one step, pack by pack and rank by rank."""

    def __init__(self, objective: Objective) -> None:
        """`objective` is asked which tokens its loss clips, and its correction takes out."""
        self._objective = objective
        self._sums = torch.zeros(len(LAG_BUCKETS), _SUMS, dtype=torch.float64)
        self._gaps = torch.zeros(len(LAG_BUCKETS), dtype=torch.float64)
        self._lags: Counter[int] = Counter()
        self._streams = StreamSums()

    def add(self, pack: Pack, seen: Packed) -> None:
        """A pack of the step, and its log-probs and entropy [T] before the step.

        What was sampled counts, whether rewards or a teacher are learnt from; examples do not.
        """
        self._streams += sums(pack, seen)
        pack = pack._replace(weight=torch.maximum(pack.weight, pack.kl_weight))
        inside = pack.weight > 0
        if not inside.any():
            return
        tokens = self._objective.aligned(pack, seen.logp.detach())
        gap = (tokens.logp - tokens.behaviour).double()
        r = ratio(tokens.logp.double(), tokens.behaviour.double())
        k3 = r - 1 - clamped(gap)
        masked = self._objective.correction(tokens) == 0
        term = self._objective.kl(tokens) if self._objective.kl else torch.zeros_like(r)
        far = gap.abs() > MAX_LOG_RATIO
        columns = [torch.ones_like(r), r, r * r, k3, seen.entropy, self._clipped(tokens)]
        columns += [masked, far, term]
        table = torch.stack([column.double() for column in columns], dim=-1)  # [T, _SUMS]
        bucket = torch.bucketize(pack.lag[inside], torch.tensor(LAG_BUCKETS_TO)).cpu()
        self._sums.index_add_(0, bucket, table[inside].cpu())
        self._gaps.scatter_reduce_(0, bucket, gap[inside].abs().cpu(), "amax")
        self._lags.update(pack.lag[inside].tolist())

    def sums(self) -> Sums:
        """For another rank to `merge`."""
        rows = tuple(tuple(row) for row in self._sums.tolist())
        return Sums(rows, tuple(self._gaps.tolist()), dict(self._lags), self._streams)

    def merge(self, others: Sums) -> None:
        """Another rank's packs of the same step."""
        self._sums += torch.tensor(others.sums, dtype=torch.float64)
        self._gaps = torch.maximum(self._gaps, torch.tensor(others.gaps, dtype=torch.float64))
        self._lags.update(others.lags)
        self._streams += others.streams

    def tokens_by_lag(self) -> list[tuple[int, int]]:
        """Pairs of a lag, in steps, and the number of tokens that had it."""
        return sorted(self._lags.items())

    def summary(self) -> dict[str, float]:
        """As metrics.jsonl names them: shares are of 1, entropy is in nats, lags are in steps."""
        each = max(1, self._lags.total())
        return {
            **_figures(self._sums.sum(0), self._gaps.max()),
            "lag_mean": sum(lag * count for lag, count in self._lags.items()) / each,
            "lag_p95": float(_percentile(self._lags, 0.95)),
            "lag_max": float(max(self._lags, default=0)),
        }

    def apart(self) -> dict[str, float]:
        """k3 by its two causes, and the engines' largest |log r|; NaN where no token tells.

        A token of lag 0 was sampled by the very weights that are trained, so what its log-prob is
        off is the engine's. Of an older one the policy's drift is in k3 as well. It is about half
        of the mean square of log r, to which independent parts add up: the drift is what is left.
        """
        own, older = self._sums[0], self._sums[1:].sum(0)
        engine = _k3(own)
        return {
            "engine_k3": engine,
            "engine_gap_max": float(self._gaps[0]) if own[0] else math.nan,
            "drift_k3": _drift(_k3(older), engine),
        }

    def streams(self) -> dict[str, float]:
        """What there was beside the policy gradient, as metrics.jsonl names it."""
        return self._streams.summary()

    def by_lag(self) -> dict[str, dict[str, float]]:
        """The same figures of each bucket of lags that has tokens, their number and their drift."""
        rows = zip(LAG_BUCKETS, self._sums, self._gaps, strict=True)
        engine = _k3(self._sums[0])
        return {
            name: {
                "tokens": float(sums[0]),
                **_figures(sums, gap),
                "drift_k3": _drift(_k3(sums), engine),
            }
            for name, sums, gap in rows
            if sums[0] > 0
        }

    def _clipped(self, tokens: Tokens) -> Tensor:
        """Where what an advantage adds to the gradient is not -rA: known without the formula."""
        zero = torch.zeros_like(tokens.advantage)
        added = self._gradient(tokens) - self._gradient(tokens._replace(advantage=zero))
        plain = -ratio(tokens.logp.double(), tokens.anchor.double()) * tokens.advantage
        return (added - plain).abs() > _TOLERANCE * plain.abs()

    def _gradient(self, tokens: Tokens) -> Tensor:
        with torch.enable_grad():
            logp = tokens.logp.clone().requires_grad_()
            losses = self._objective.loss(tokens._replace(logp=logp))
            (gradient,) = torch.autograd.grad(losses.sum(), logp)
        return gradient


def _figures(sums: Tensor, gap: Tensor) -> dict[str, float]:
    tokens, r, squares, k3, entropy, clipped, masked, far, term = sums.tolist()
    each = max(1.0, tokens)
    return {
        "ess": r * r / (each * squares) if squares else 0.0,
        "mismatch_k3": k3 / each,
        "gap_max": float(gap),
        "clipped": clipped / each,
        "trust_masked": masked / each,
        "clamped": far / each,
        "entropy": entropy / each,
        "kl_term": term / each,
    }


def _k3(sums: Tensor) -> float:
    tokens, k3 = float(sums[0]), float(sums[3])
    return k3 / tokens if tokens else math.nan


def _drift(k3: float, engine: float) -> float:
    """The part of k3 that is not the engine's, as far as that is known."""
    return k3 if math.isnan(engine) or math.isnan(k3) else max(0.0, k3 - engine)


def _percentile(counts: Mapping[int, int], share: float) -> int:
    """The least value that at least `share` of all do not exceed."""
    left = share * sum(counts.values())
    for value, count in sorted(counts.items()):
        left -= count
        if left <= 0:
            return value
    return 0

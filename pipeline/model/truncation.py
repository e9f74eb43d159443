"""Top-k, top-p and min-p: which ids a position may draw, and the distribution over those. † torch

The engine chooses the ids here and records them; the trainer reads the record and never chooses
anew, so that a tie or a rounding at a boundary cannot differ between the two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CANDIDATES = 256
_MORE = 16
_TOLERANCE = 1e-6


class Limits(NamedTuple):
    """What each row may draw: `top_k` int64 [n] (0 is off), `top_p` and `min_p` float64 [n]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def keep(logp: Tensor, limits: Limits, *, candidates: int = _CANDIDATES) -> Tensor:
    """The ids that may be drawn, bool [n, V], given log-probs [n, V]; in each row one at least.

    Ids are ranked by probability, and equal ones by id, so that every limit keeps a head of the
    ranking and no tie is left open. In the order of transformers' warpers: `top_k` keeps so many;
    `top_p` the shortest head whose share of what top-k left reaches it; `min_p` what has at least
    that share of the likeliest one's probability. (vLLM applies min-p first, so that top-p takes
    its share of less. Both of them keep all that tie with the last; here a count is a count.)
    A bound that is met but for 1e-6 is met: .5 + .3 reaches .8 in any arithmetic.

    Only the likeliest few are ranked, and more of them in the rows where that does not settle it.
    """
    size = logp.shape[-1]
    few = min(size, max(candidates, 2 * int(limits.top_k.max())))
    ids, inside, settled = _head(logp, limits, few)
    kept = torch.zeros_like(logp, dtype=torch.bool).scatter_(1, ids, inside)
    if few < size and not bool(settled.all()):
        rest = (~settled).nonzero().squeeze(-1)
        some = Limits(*(limit[rest] for limit in limits))
        kept[rest] = keep(logp[rest], some, candidates=_MORE * few)
    return kept


def renormalised(logp: Tensor, kept: Tensor) -> Tensor:
    """Log-probs [n, V] over the kept ids [n, V] alone; -inf at all others."""
    return torch.log_softmax(logp.masked_fill(~kept, -math.inf), dim=-1)


def recorded(kept: Tensor) -> tuple[Tensor, Tensor]:
    """As the wire has it: counts [n] and ids [K], int32, ascending; 0 where all ids are kept."""
    counts = kept.sum(-1, dtype=torch.int32)
    counts = torch.where(counts == kept.shape[-1], 0, counts)
    return counts, (kept & (counts > 0).unsqueeze(-1)).nonzero()[:, 1].int()


def _head(logp: Tensor, limits: Limits, few: int) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest `few` ids [n, few], which of them are kept, and which rows that settles [n]."""
    values, ids = _ranking(logp, few)
    inside = _within(values, limits)
    least = values.masked_fill(~inside, math.inf).amin(-1)
    # What ties with the last candidate may have been left out, though its id is lower.
    return ids, inside, least > values[:, -1]


def _ranking(logp: Tensor, few: int) -> tuple[Tensor, Tensor]:
    """Log-probs and ids [n, few], the likeliest first, equal ones by id."""
    if few == logp.shape[-1]:
        return torch.sort(logp, dim=-1, descending=True, stable=True)
    values, ids = logp.topk(few, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, by_value)


def _within(values: Tensor, limits: Limits) -> Tensor:
    """Whether each of log-probs [n, m], ranked from the likeliest on, is within all limits."""
    top_k, top_p, min_p = (limit.unsqueeze(-1) for limit in limits)
    rank = torch.arange(values.shape[-1], device=values.device)
    counted = (rank < top_k) | (top_k == 0)
    share = values.double().exp() * counted
    before = share.cumsum(-1) - share
    whole = torch.where(top_k == 0, 1.0, share.sum(-1, keepdim=True))
    massive = (before < top_p * whole - _TOLERANCE) | (top_p >= 1) | (rank == 0)
    likely = values >= values[:, :1] + min_p.log() - _TOLERANCE
    return counted & massive & likely

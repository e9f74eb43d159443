"""Logits to the log-prob of one id each, and the entropy, in the logits' own memory. † torch

The distribution is `sampling.logprobs`. By autograd its log-probs, their exponentials and the
gradient would each be one more array as wide as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = {"cpu": 1 << 18}
"""Of logits that are worked on at once: what a core's own cache holds."""
WIDE = 1 << 26
"""The same where nothing is gained by small ones."""


def chosen(logits: Tensor, temperature: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy [n], float32, of `ids` [n] under logits [n, V] at `temperature` [n].

    The entropy (nats) has no gradient. The logits are used up: they become the gradient, so only
    one backward pass can be made, and nobody else may need them.
    """
    logp, entropy = _Chosen.apply(logits.float(), temperature, ids)  # type: ignore[no-untyped-call]
    return logp, entropy


class _Chosen(torch.autograd.Function):
    """With x = logits / temperature - their maximum: log p = x[id] - log Σ exp x."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: Tensor, ids: Tensor) -> Any:
        divisor = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
        divisor, ids = divisor.unsqueeze(-1), ids.unsqueeze(-1)
        logp, entropy = torch.empty_like(temperature), torch.empty_like(temperature)
        log_sums = torch.empty_like(divisor)
        for at in _blocks(logits):
            x = logits[at].div_(divisor[at])
            x.sub_(x.amax(-1, keepdim=True))
            weights = x.exp()
            sums = weights.sum(-1)
            log_sums[at] = sums.log().unsqueeze(-1)
            logp[at] = (x.gather(-1, ids[at]) - log_sums[at]).squeeze(-1)
            entropy[at] = sums.log() - torch.linalg.vecdot(weights, x) / sums
        ctx.save_for_backward(logits, divisor, ids, log_sums)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> Any:
        logits, divisor, ids, log_sums = ctx.saved_tensors
        scale = upstream.unsqueeze(-1) / divisor
        for at in _blocks(logits):
            gradient = logits[at].sub_(log_sums[at]).exp_().mul_(-scale[at])
            gradient.scatter_add_(-1, ids[at], scale[at])
        return logits, None, None


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Rows of the logits, some at a time."""
    rows = max(1, BLOCK_ELEMENTS.get(logits.device.type, WIDE) // logits.shape[-1])
    return (slice(first, first + rows) for first in range(0, logits.shape[0], rows))

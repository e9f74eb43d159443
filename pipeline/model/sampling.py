"""THE distribution: what the engine samples from and what the trainer differentiates.

Both sides call `logprobs`, so that a log-prob means the same thing on either. The noise is
counter-based: a member's draws depend on (run seed, group, member, position) and on nothing else,
least of all on its neighbours in a batch.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15, the increment of splitmix64
_MIX = (-4658895280553007687, -7723592293110705685)  # its two multipliers, as signed integers


def logprobs(logits: Tensor, temperature: Tensor) -> Tensor:
    """Log of the distribution [..., V], float32, at `temperature` [...]; 0 counts as 1 here."""
    divisor = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    return torch.log_softmax(logits.float() / divisor.unsqueeze(-1), dim=-1)


def kept_logprobs(logits: Tensor, temperature: Tensor, ids: Tensor, inside: Tensor) -> Tensor:
    """`logprobs` over some ids alone: logits [n, V], ids and inside [n, K] to float32 [n, K].

    `ids` are padded where `inside` is False; there the log-prob is -inf, and no gradient flows.
    """
    some = logits.gather(-1, ids)
    return logprobs(some.masked_fill(~inside, -torch.inf), temperature)


def member_key(seed: int, group: str, member: int) -> int:
    """The key of a member's noise: 64 bits, signed."""
    digest = hashlib.blake2b(f"{seed}/{group}/{member}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """One uniform in [0, 1) for each key at its position: int64 [n], int64 [n] to float64 [n].

    splitmix64 (Steele, Lea and Flood, 2014) with the key as its state, jumped to the position. 52
    of its bits, so that a uniform times a whole is below the whole, however that is rounded.
    """
    x = keys + (positions + 1) * _GAMMA
    x = (x ^ _shift(x, 30)) * _MIX[0]
    x = (x ^ _shift(x, 27)) * _MIX[1]
    return _shift(x ^ _shift(x, 31), 12).double() * 2.0**-52


def draw(logp: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids int64 [n] and their log-probs [n], from log-probs [n, V] by inverse CDF.

    At temperature 0 the choice is the likeliest token, with certainty: log-prob 0. What has no
    probability is never drawn.
    """
    cdf = logp.double().exp().cumsum(-1)
    target = (uniform * cdf[:, -1]).unsqueeze(-1)
    sampled = torch.searchsorted(cdf, target, right=True).squeeze(-1).clamp(max=logp.shape[-1] - 1)
    greedy = temperature == 0
    ids = torch.where(greedy, logp.argmax(-1), sampled)
    chosen = logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return ids, torch.where(greedy, torch.zeros_like(chosen), chosen)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

"""Policy losses: `Tokens` to a loss per token [T], to be minimised. † torch

A loss knows neither mask nor denominator. Each bounds the gradient of a token on both signs of
its advantage. Here anchor is the log-prob that the ratio r is taken against.
"""

from __future__ import annotations

from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from pipeline.protocols import Tokens

MAX_LOG_RATIO = 20.0

NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
AboveOne = Annotated[float, Meta(gt=1)]


def ratio(logp: Tensor, anchor: Tensor) -> Tensor:
    """r = exp(logp - anchor) [T], the difference clamped to +-20 so that no exp overflows."""
    return (logp - anchor).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def cispo(tokens: Tokens, *, low: NotNegative = 0.0, high: NotNegative = 5.0) -> Tensor:
    """-sg(clip(r, low, high)) A logp (MiniMax-M1, 2025): a token's gradient is at most high |A|."""
    weight = ratio(tokens.logp.detach(), tokens.anchor).clamp(low, high)
    return -weight * tokens.advantage * tokens.logp


def ppo(
    tokens: Tokens,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.28,
    dual_clip: AboveOne = 3.0,
) -> Tensor:
    """-min(rA, clip(r, 1 - clip_low, 1 + clip_high) A); for A < 0 at most -dual_clip A.

    Schulman et al., 2017; the higher upper clip is DAPO's (2025), the dual clip Ye et al.'s (2020).
    With `dual_clip` inf the gradient of a token with A < 0 has no bound.
    """
    r, advantage = ratio(tokens.logp, tokens.anchor), tokens.advantage
    loss = -torch.minimum(r * advantage, r.clamp(1 - clip_low, 1 + clip_high) * advantage)
    return torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)

"""The two streams beside the policy gradient's: tokens to imitate, tokens to distil. † torch

Each has its own count: a batch's scalar is Σ loss / N + c Σ ce / N_ce + c Σ kl / N_kl, where the
weights c / N of its packs are made once a step, here for these two. There is no advantage and no
ratio for what is imitated. The terms' formulas are in `divergence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor

from pipeline.messages import Teaching
from pipeline.protocols import Pack, Packed, Tokens
from pipeline.run import Objective
from services.training.divergence import distilled, top_k


class Coefficients(NamedTuple):
    """What the streams weigh beside the policy gradient, which weighs 1; 0: there is none."""

    imitation: float = 0.0
    distillation: float = 0.0


POLICY_ALONE = Coefficients()


def coefficients(settings: Objective) -> Coefficients:
    """As RUN.toml says."""
    imitation, distillation = settings.imitation, settings.distillation
    return Coefficients(
        imitation=imitation.coefficient if imitation else 0.0,
        distillation=distillation.coefficient if distillation else 0.0,
    )


class Imitated(Struct, frozen=True, array_like=True):
    """An example to imitate: ids (int32) of its prompt, and of its answer with the end token."""

    prompt: bytes
    answer: bytes

    @property
    def tokens(self) -> int:
        """That are counted: the answer's."""
        return len(self.answer) // 4


def imitated(example: Imitated, *, number: int, weight: float, k: int) -> Pack:
    """One sequence [P + T] at temperature 1; its columns for a teacher are `k` wide, and empty."""
    prompt, answer = (ids_of(raw) for raw in (example.prompt, example.answer))
    ids = torch.cat([prompt, answer])
    nothing, none = torch.zeros(ids.shape), torch.zeros_like(ids)
    return Pack(
        ids=ids,
        positions=torch.arange(ids.numel()),
        sequence=torch.full_like(ids, number),
        temperature=torch.ones(ids.shape),
        behaviour=nothing,
        advantage=nothing,
        weight=nothing,
        lag=none,
        kept_counts=none,
        kept_ids=none[:0],
        score=nothing,
        segment=none,
        ce_weight=torch.where(torch.arange(ids.numel()) >= prompt.numel(), weight, 0.0),
        kl_weight=nothing,
        teacher=nothing,
        teacher_ids=none.new_zeros(ids.numel(), k),
        teacher_logprobs=nothing.new_full((ids.numel(), k), -torch.inf),
        reference=nothing,
    )


def taught(part: Pack, teaching: Teaching | None, *, weight: float, k: int) -> Pack:
    """A sequence whose tokens inside the loss are to be distilled as well, if any was taught.

    `weight` is c / N_kl; the columns of the likeliest ids are `k` wide, filled up with -inf.
    """
    tokens = part.ids.numel()
    ids = part.ids.new_zeros(tokens, k)
    logprobs = torch.full((tokens, k), -torch.inf)
    if teaching is None:
        return part._replace(teacher_ids=ids, teacher_logprobs=logprobs)
    count = len(teaching.logprobs) // 4
    own = slice(tokens - count, tokens)
    teacher = torch.zeros(tokens)
    teacher[own] = floats_of(teaching.logprobs)
    if width := width_of(teaching):
        ids[own, :width] = ids_of(teaching.top_ids).reshape(count, width)
        logprobs[own, :width] = floats_of(teaching.top_logprobs).reshape(count, width)
    return part._replace(
        kl_weight=torch.where(part.weight > 0, weight, 0.0),
        teacher=teacher,
        teacher_ids=ids,
        teacher_logprobs=logprobs,
    )


def width_of(teaching: Teaching) -> int:
    """How many of the likeliest ids it has for each token."""
    return len(teaching.top_ids) // max(1, len(teaching.logprobs))


def imitation(pack: Pack, logp: Tensor) -> Tensor:
    """Cross-entropy: -log p of each token [T] that is imitated, 0 at all others."""
    return -torch.where(pack.ce_weight > 0, logp, 0.0)


def distillation(pack: Pack, tokens: Tokens, among: Tensor | None) -> Tensor:
    """Of each token [T]: over the teacher's likeliest ids where they are known, else of its own.

    `among` [T, k] are the policy's log-probs of those; `tokens` are what is to be distilled.
    """
    single = distilled(tokens)
    if among is None:
        return single
    known = (pack.teacher_logprobs > -torch.inf).any(-1)
    return torch.where(known, top_k(among, pack.teacher_logprobs), single)


class StreamSums(Struct, frozen=True, array_like=True):
    """What one rank has added up of its packs: tokens and unweighted losses."""

    imitated: float = 0.0
    ce: float = 0.0
    distilled: float = 0.0
    kl: float = 0.0

    def __add__(self, other: StreamSums) -> StreamSums:
        """Of both."""
        return StreamSums(
            self.imitated + other.imitated,
            self.ce + other.ce,
            self.distilled + other.distilled,
            self.kl + other.kl,
        )

    def summary(self) -> dict[str, float]:
        """As metrics.jsonl names them. `kl` is in nats a token: of single tokens policy - teacher,
        else the share of the divergence that the teacher's likeliest ids have.
        """
        return {
            "imitated_tokens": self.imitated,
            "ce_loss": self.ce / max(1.0, self.imitated),
            "distilled_tokens": self.distilled,
            "kl_loss": self.kl / max(1.0, self.distilled),
        }


def sums(pack: Pack, seen: Packed) -> StreamSums:
    """Of a pack, given log-probs and those of a teacher's ids as they were before the step."""
    ce, kl = pack.ce_weight > 0, pack.kl_weight > 0
    gap = seen.logp - pack.teacher
    if seen.among is not None:
        known = (pack.teacher_logprobs > -torch.inf).any(-1)
        gap = torch.where(known, top_k(seen.among, pack.teacher_logprobs), gap)
    return StreamSums(
        float(ce.sum()),
        float(-seen.logp[ce].double().sum()),
        float(kl.sum()),
        float(gap[kl].double().sum()),
    )


class Source(NamedTuple):
    """Where a sequence of the policy's comes from: what was taught of it, and whether its group has
    a signal. Without one it is in the batch for its teacher alone.
    """

    teaching: Teaching | None
    has_signal: bool


def mixed(
    parts: Sequence[Pack],
    sources: Sequence[Source],
    examples: Sequence[Imitated],
    *,
    coefficients: Coefficients,
) -> list[Pack]:
    """The policy's sequences, each with its source, and the examples: all streams, each weighed by
    its own count.
    """
    teachings = [source.teaching if coefficients.distillation else None for source in sources]
    k = widest(teachings)
    pairs = [*zip(parts, teachings, strict=True)]
    count = sum(int((part.weight > 0).sum()) for part, teaching in pairs if teaching)
    weight = coefficients.distillation / max(1, count)
    own = [
        _without_signal(part) if not source.has_signal else part
        for source, part in zip(
            sources, (taught(*pair, weight=weight, k=k) for pair in pairs), strict=True
        )
    ]
    weight = coefficients.imitation / max(1, sum(one.tokens for one in examples))
    return own + [
        imitated(one, number=number, weight=weight, k=k)
        for number, one in enumerate(examples, start=len(parts))
    ]


def _without_signal(part: Pack) -> Pack:
    nothing = torch.zeros_like(part.weight)
    return part._replace(weight=nothing, advantage=nothing)


def widest(teachings: Sequence[Teaching | None]) -> int:
    """Of the likeliest ids of a step: packs are joined, so all have as many columns."""
    return max((width_of(one) for one in teachings if one), default=0)


def ids_of(raw: bytes) -> Tensor:
    """Ids as they travel, int64."""
    return (
        torch.frombuffer(bytearray(raw), dtype=torch.int32).long()
        if raw
        else torch.zeros(0, dtype=torch.int64)
    )


def floats_of(raw: bytes) -> Tensor:
    """Numbers as they travel, float32."""
    return torch.frombuffer(bytearray(raw), dtype=torch.float32) if raw else torch.zeros(0)

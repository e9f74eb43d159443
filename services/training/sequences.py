"""Planned sequences and their cargo to packs, on the rank that steps on them. † torch

What each of their tokens weighs was planned for the whole step (`planned`); where their cargo comes
from is in `cargo`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.messages import Completion, Member, Prompt, Teaching
from pipeline.protocols import Pack
from services.training.briefs import width_of
from services.training.planned import Copied, Planned


def joined(packs: Sequence[Pack]) -> Pack:
    """All of their sequences in one pack."""
    return Pack(*map(torch.cat, zip(*packs, strict=True)))


def dummy(likeliest: int) -> Pack:
    """Two tokens of which the second is predicted, for nothing, in the graph like any other: what a
    rank passes that has fewer packs than others, since a collective inside a pass needs all.
    """
    nothing = _blank(torch.zeros(2, dtype=torch.int64), likeliest)
    return nothing._replace(teacher_logprobs=torch.zeros(2, likeliest))


def plain(ids: Tensor) -> Pack:
    """One sequence [T] at temperature 1 that nothing is to be learnt from."""
    return _blank(ids, 0)


def sampled(planned: Planned, prompt: Prompt, member: Member, *, likeliest: int) -> Pack:
    """One sequence [P + T]: the prompt, which is outside the loss, and the completion.

    Columns for a teacher's ids are `likeliest` wide: as many as any sequence of the step needs.
    """
    completion, before = member.completion, _ids(prompt.ids)
    pack = _blank(torch.cat([before, _ids(completion.ids)]), likeliest)
    inside = torch.zeros_like(pack.ids, dtype=torch.bool)
    for one in planned.stretches:
        tokens = slice(before.numel() + one.start, before.numel() + one.stop)
        inside[tokens] = one.reason is None
        pack.lag[tokens] = one.lag or 0
    counts, kept = _kept(completion)
    own = slice(before.numel(), None)
    pack.behaviour[own] = _floats(completion.logprobs)
    pack.kept_counts[own] = counts
    pack.segment[own] = _turns(completion)
    pack = pack._replace(
        sequence=torch.full_like(pack.ids, planned.number),
        temperature=torch.full_like(pack.temperature, prompt.sampling.temperature),
        advantage=inside.float() * planned.advantage,
        weight=inside.float() * planned.weight,
        kl_weight=inside.float() * planned.kl_weight,
        kept_ids=kept,
        score=torch.full_like(pack.score, planned.outcome),
    )
    if planned.kl_weight and member.score and member.score.teaching:
        _teach(pack, member.score.teaching)
    return pack


def imitated(copied: Copied, *, likeliest: int) -> Pack:
    """One sequence [P + T] at temperature 1, for no reward and no teacher."""
    prompt, answer = _ids(copied.example.prompt), _ids(copied.example.answer)
    pack = _blank(torch.cat([prompt, answer]), likeliest)
    pack.ce_weight[prompt.numel() :] = copied.weight
    return pack._replace(sequence=torch.full_like(pack.ids, copied.number))


def _blank(ids: Tensor, likeliest: int) -> Pack:
    """A sequence [T] that nothing is known of but its tokens, at temperature 1."""
    numbers, floats = ids.numel(), torch.float32
    columns = {name: torch.zeros(numbers, dtype=floats) for name in Pack._fields}
    for name in ("sequence", "lag", "kept_counts", "segment"):
        columns[name] = torch.zeros_like(ids)
    return Pack(
        **columns
        | {
            "ids": ids,
            "positions": torch.arange(numbers),
            "temperature": torch.ones(numbers),
            "kept_ids": ids.new_zeros(0),
            "teacher_ids": ids.new_zeros(numbers, likeliest),
            "teacher_logprobs": torch.full((numbers, likeliest), -torch.inf),
        }
    )


def _teach(pack: Pack, teaching: Teaching) -> None:
    """What the teacher said of the last tokens, which are the completion's."""
    count, width = len(teaching.logprobs) // 4, width_of(teaching)
    own = slice(pack.ids.numel() - count, None)
    pack.teacher[own] = _floats(teaching.logprobs)
    if width:
        pack.teacher_ids[own, :width] = _ids(teaching.top_ids).reshape(count, width)
        pack.teacher_logprobs[own, :width] = _floats(teaching.top_logprobs).reshape(count, width)


def _turns(completion: Completion) -> Tensor:
    """The number of each token's turn [T]: how many runs that others wrote have begun before it."""
    turns = torch.zeros(completion.tokens, dtype=torch.int64)
    for start, stop in completion.mask:
        turns[start:] += int(start < stop)
    return turns


def _kept(completion: Completion) -> tuple[Tensor, Tensor]:
    """How many ids each token was drawn from, and which; 0 and none where from all."""
    if completion.kept is None:
        return torch.zeros(completion.tokens, dtype=torch.int64), _ids(b"")
    return _ids(completion.kept.counts), _ids(completion.kept.ids)


def _ids(raw: bytes) -> Tensor:
    """As they travel, to int64."""
    return _tensor(raw, torch.int32).long()


def _floats(raw: bytes) -> Tensor:
    return _tensor(raw, torch.float32)


def _tensor(raw: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.zeros(0, dtype=dtype)

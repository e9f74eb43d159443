"""The groups worth a step to its packs, with one denominator for all of them. † torch

Judging is in `considered`; how the packs become a gradient in `objective` and the back ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ledger import Fates
from pipeline.messages import Completion, Group
from pipeline.protocols import Pack
from services.training.considered import Considered, Refusal, Row, Rules, consider
from services.training.packing import pack
from services.training.shares import joined


class Batch(NamedTuple):
    """What one step consumes: nothing to step on where `tokens`, those inside the loss, is 0.

    `groups`, and the `fates` of each, are all that were given to `build`, judged at `rules`.
    """

    packs: tuple[Pack, ...]
    fates: dict[str, Fates]
    tokens: int
    statistics: dict[str, float]
    groups: tuple[Group, ...]
    rules: Rules
    refused: tuple[Refusal, ...]


def build(considered: Iterable[Considered], rules: Rules, *, pack_tokens: int) -> Batch:
    """The batch of these groups, in order of admission. Judged again if the rules have moved."""
    again = [c if c.rules == rules else consider(c.group, rules) for c in considered]
    again.sort(key=lambda c: c.group.prompt.seq)
    kept = [c for c in again if c.verdict == "keep"]
    rows = [(c.group, row) for c in kept for row in c.rows if row.tokens]
    tokens = sum(row.tokens for _, row in rows)
    parts = [_part(group, row, n, tokens) for n, (group, row) in enumerate(rows)]
    numbers = pack([part.ids.numel() for part in parts], pack_tokens)
    return Batch(
        packs=tuple(joined([parts[n] for n in members]) for members in numbers),
        fates={c.group.prompt.group: c.fates for c in again},
        tokens=tokens,
        statistics=_statistics(kept, [row for _, row in rows]),
        groups=tuple(c.group for c in again),
        rules=rules,
        refused=tuple(one for c in again for one in c.refused),
    )


def _part(group: Group, row: Row, number: int, denominator: int) -> Pack:
    """One sequence [P + T]: the prompt, which is outside the loss, and the completion."""
    prompt = _tensor(group.prompt.ids, torch.int32).long()
    completion = _tensor(row.completion.ids, torch.int32).long()
    ids = torch.cat([prompt, completion])
    inside, lag = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    for one in row.stretches:
        tokens = slice(prompt.numel() + one.start, prompt.numel() + one.stop)
        inside[tokens] = one.reason is None
        lag[tokens] = one.lag or 0
    behaviour = _tensor(row.completion.logprobs, torch.float32)
    kept_counts, kept_ids = _kept(row.completion)
    return Pack(
        ids=ids,
        positions=torch.arange(ids.numel()),
        sequence=torch.full_like(ids, number),
        temperature=torch.full(ids.shape, group.prompt.sampling.temperature, dtype=torch.float32),
        behaviour=torch.cat([torch.zeros(prompt.numel()), behaviour]),
        advantage=inside.float() * row.advantage,
        weight=inside.float() / denominator,
        lag=lag,
        kept_counts=torch.cat([torch.zeros(prompt.numel(), dtype=torch.int64), kept_counts]),
        kept_ids=kept_ids,
    )


def _kept(completion: Completion) -> tuple[Tensor, Tensor]:
    """How many ids each token was drawn from, and which; 0 and none where from all."""
    if completion.kept is None:
        return torch.zeros(completion.tokens, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    kept = completion.kept
    return _tensor(kept.counts, torch.int32).long(), _tensor(kept.ids, torch.int32).long()


def _tensor(raw: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.zeros(0, dtype=dtype)


def _statistics(kept: Sequence[Considered], rows: Sequence[Row]) -> dict[str, float]:
    """Of the batch alone: without the groups that were dropped before it."""
    lengths = [row.completion.tokens for row in rows]
    cut = [row.completion.finish == "length" for row in rows]
    return {
        "groups": len(kept),
        "members": len(rows),
        "members_spanning": sum(len({s.version for s in r.completion.spans}) > 1 for r in rows),
        "reward_mean": _mean([reward for c in kept for reward in c.rewards]),
        "completion_tokens_mean": _mean(lengths),
        "truncated_share": _mean(cut),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

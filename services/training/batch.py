"""The groups worth a step to its packs, with one weight for each of their tokens. † torch

Judging is in `considered`; how the packs become a gradient in `objective` and the back ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ledger import Fates
from pipeline.messages import Completion, Group
from pipeline.protocols import Batchwise, Graded, Pack
from services.training.considered import Considered, Refusal, Row, Rules, consider
from services.training.packing import pack
from services.training.shares import joined
from services.training.streams import Imitated, Source, mixed
from services.training.weights import Counted, token_weights


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
    examples: tuple[Imitated, ...] = ()
    graded: tuple[Graded, ...] = ()
    """For an advantage that remembers: the groups whose rewards are learnt from."""


def build(
    considered: Iterable[Considered],
    rules: Rules,
    *,
    pack_tokens: int,
    examples: tuple[Imitated, ...] = (),
) -> Batch:
    """The batch of these groups, in order of admission, and of the examples to be imitated beside
    them. Judged again if the rules have moved.
    """
    again = [c if c.rules == rules else consider(c.group, rules) for c in considered]
    again.sort(key=lambda c: c.group.prompt.seq)
    graded = tuple(_graded(c) for c in again if c.verdict == "keep" and c.has_signal)
    kept = _advantaged([c for c in again if c.verdict == "keep"], graded, rules)
    rows = [(c, row) for c in kept for row in c.rows if row.tokens]
    sources = [_source(c, row) for c, row in rows]
    weights = _weights(rows, rules)
    parts = [
        _part(c.group, row, n, weight=weight)
        for n, ((c, row), weight) in enumerate(zip(rows, weights, strict=True))
    ]
    if rows:  # examples alone are no step of the run
        parts = mixed(parts, sources, examples, coefficients=rules.streams)
    numbers = pack([part.ids.numel() for part in parts], pack_tokens)
    return Batch(
        packs=tuple(joined([parts[n] for n in members]) for members in numbers),
        fates={c.group.prompt.group: c.fates for c in again},
        tokens=sum(row.tokens for _, row in rows),
        statistics=_statistics(kept, [row for _, row in rows]),
        groups=tuple(c.group for c in again),
        rules=rules,
        refused=tuple(one for c in again for one in c.refused),
        examples=examples,
        graded=graded,
    )


def _graded(considered: Considered) -> Graded:
    """Of all that have a reward, refused or not; float64."""
    by_member = {row.member: row.advantage for row in considered.rows}
    values = [by_member[member] for member in considered.rewards]
    return Graded(considered.group.prompt.task, torch.tensor(values, dtype=torch.float64))


def _advantaged(
    kept: Sequence[Considered], graded: Sequence[Graded], rules: Rules
) -> list[Considered]:
    """With what the advantage makes of the whole batch, if it does."""
    if not isinstance(rules.advantage, Batchwise):
        return [*kept]
    told = iter(rules.advantage.over_batch(graded))
    return [_with(c, next(told)) if c.has_signal else c for c in kept]


def _with(considered: Considered, values: Tensor) -> Considered:
    of = dict(zip(considered.rewards, values.tolist(), strict=True))
    rows = tuple(row._replace(advantage=of.get(row.member, 0.0)) for row in considered.rows)
    return considered._replace(rows=rows)


def _weights(rows: Sequence[tuple[Considered, Row]], rules: Rules) -> list[float]:
    """Of a token of each row; what is in the batch for its teacher alone counts for nothing."""
    weights = iter(
        token_weights(
            [_counted(c.group, row) for c, row in rows if c.has_signal],
            rules.treatment.aggregation,
        )
    )
    return [next(weights) if c.has_signal else 1.0 for c, _ in rows]


def _counted(group: Group, row: Row) -> Counted:
    prompt = group.prompt
    return Counted(prompt.group, row.tokens, prompt.members * prompt.sampling.max_tokens)


def _source(considered: Considered, row: Row) -> Source:
    score = considered.group.members[row.member].score
    return Source(score.teaching if score is not None else None, considered.has_signal)


def _part(group: Group, row: Row, number: int, *, weight: float) -> Pack:
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
        weight=inside.float() * weight,
        lag=lag,
        kept_counts=torch.cat([torch.zeros(prompt.numel(), dtype=torch.int64), kept_counts]),
        kept_ids=kept_ids,
        score=torch.full(ids.shape, row.outcome, dtype=torch.float32),
        segment=torch.cat([torch.zeros_like(prompt), _turns(row.completion)]),
        ce_weight=torch.zeros(ids.shape),
        kl_weight=torch.zeros(ids.shape),
        teacher=torch.zeros(ids.shape),
        teacher_ids=torch.zeros(*ids.shape, 0, dtype=torch.int64),
        teacher_logprobs=torch.zeros(*ids.shape, 0),
        reference=torch.zeros(ids.shape),
    )


def _turns(completion: Completion) -> Tensor:
    """The number of each token's turn [T]: how many runs that others wrote have begun before it."""
    turns = torch.zeros(completion.tokens, dtype=torch.int64)
    for start, stop in completion.mask:
        turns[start:] += int(start < stop)
    return turns


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
        "reward_mean": _mean([reward for c in kept for reward in c.rewards.values()]),
        "completion_tokens_mean": _mean(lengths),
        "truncated_share": _mean(cut),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

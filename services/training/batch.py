"""The groups worth a step to its sequences, with one weight for each of their tokens. † torch

Judging is in `considered`; how the sequences become packs in `sequences`, and those a gradient in
`objective` and the back ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ledger import Fates
from pipeline.protocols import Batchwise, Graded
from services.training.briefs import Brief
from services.training.considered import Considered, Refusal, Row, Rules, consider
from services.training.planned import Copied, Imitated, Planned
from services.training.weights import Counted, token_weights


class Batch(NamedTuple):
    """What one step consumes: nothing to step on where `tokens`, those inside the loss, is 0.

    `groups`, and the `fates` of each, are all that were given to `build`, judged at `rules`. The
    columns for a teacher's ids are `likeliest` wide throughout the step.
    """

    sequences: tuple[Planned | Copied, ...]
    fates: dict[str, Fates]
    tokens: int
    statistics: dict[str, float]
    groups: tuple[Brief, ...]
    rules: Rules
    refused: tuple[Refusal, ...]
    examples: tuple[Imitated, ...] = ()
    graded: tuple[Graded, ...] = ()
    """For an advantage that remembers: the groups whose rewards are learnt from."""
    likeliest: int = 0


def build(
    considered: Iterable[Considered], rules: Rules, *, examples: tuple[Imitated, ...] = ()
) -> Batch:
    """The batch of these groups, in order of admission, and of the examples to be imitated beside
    them. Judged again if the rules have moved.
    """
    again = [c if c.rules == rules else consider(c.brief, rules) for c in considered]
    again.sort(key=lambda c: c.brief.seq)
    graded = tuple(_graded(c) for c in again if c.verdict == "keep" and c.has_signal)
    kept = _advantaged([c for c in again if c.verdict == "keep"], graded, rules)
    rows = [(c, row) for c in kept for row in c.rows if row.tokens]
    copied = _copied(examples, rules, first=len(rows)) if rows else []  # alone they are no step
    return Batch(
        sequences=(*_planned(rows, rules), *copied),
        fates={c.brief.group: c.fates for c in again},
        tokens=sum(row.tokens for _, row in rows),
        statistics=_statistics(kept, [row for _, row in rows]),
        groups=tuple(c.brief for c in again),
        rules=rules,
        refused=tuple(one for c in again for one in c.refused),
        examples=examples,
        graded=graded,
        likeliest=max((row.told.likeliest or 0 for row in _taught(rows, rules)), default=0),
    )


def _planned(rows: Sequence[tuple[Considered, Row]], rules: Rules) -> list[Planned]:
    """Each with what a token of it weighs; without a signal it is there for its teacher alone."""
    taught = _taught(rows, rules)
    kl = rules.streams.distillation / max(1, sum(row.tokens for row in taught))
    return [
        Planned(
            number,
            c.brief.group,
            row.member,
            c.brief.prompt_tokens + row.told.tokens,
            row.advantage if c.has_signal else 0.0,
            row.outcome,
            weight,
            0.0 if row.told.likeliest is None else kl,
            row.stretches,
        )
        for number, ((c, row), weight) in enumerate(zip(rows, _weights(rows, rules), strict=True))
    ]


def _taught(rows: Sequence[tuple[Considered, Row]], rules: Rules) -> list[Row]:
    """Those of which a teacher is learnt from."""
    is_learnt = rules.streams.distillation > 0
    return [row for _, row in rows if is_learnt and row.told.likeliest is not None]


def _copied(examples: Sequence[Imitated], rules: Rules, *, first: int) -> list[Copied]:
    """Numbered from `first` on, all weighed by the tokens of their answers."""
    weight = rules.streams.imitation / max(1, sum(one.tokens for one in examples))
    return [Copied(number, one, weight) for number, one in enumerate(examples, start=first)]


def _graded(considered: Considered) -> Graded:
    """Of all that have a reward, refused or not; float64."""
    by_member = {row.member: row.advantage for row in considered.rows}
    values = [by_member[member] for member in considered.rewards]
    return Graded(considered.brief.task, torch.tensor(values, dtype=torch.float64))


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
    """Of a token of each row, for its reward: none where there is no signal."""
    weights = iter(
        token_weights(
            [Counted(c.brief.group, row.tokens, c.brief.room) for c, row in rows if c.has_signal],
            rules.treatment.aggregation,
        )
    )
    return [next(weights) if c.has_signal else 0.0 for c, _ in rows]


def _statistics(kept: Sequence[Considered], rows: Sequence[Row]) -> dict[str, float]:
    """Of the batch alone: without the groups that were dropped before it."""
    lengths = [row.told.tokens for row in rows]
    cut = [row.told.finish == "length" for row in rows]
    return {
        "groups": len(kept),
        "members": len(rows),
        "members_spanning": sum(len({s.version for s in r.told.spans}) > 1 for r in rows),
        "reward_mean": _mean([reward for c in kept for reward in c.rewards.values()]),
        "completion_tokens_mean": _mean(lengths),
        "truncated_share": _mean(cut),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""Groups as judged: which members and tokens a step may use, advantages, fates. † torch

How those that are worth a step become its packs is in `batch`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from pipeline.flaws import flaw
from pipeline.ledger import Fates, Sum, total
from pipeline.messages import Completion, Group, Member
from pipeline.protocols import Advantage
from pipeline.versions import MASKED, Freshness, Stretch, judge, mask_out
from services.training.advantages import flat

TRAINED = "trained"
ZERO_SIGNAL = "zero_signal"
SCORER_ERROR = "scorer_error"
SKIPPED = "skipped"

Verdict = Literal["keep", "zero_signal", "unusable"]


class Rules(NamedTuple):
    """How groups are judged at one step of the trainer, whose model knows `vocabulary` ids."""

    freshness: Freshness
    advantage: Advantage
    vocabulary: int


class Row(NamedTuple):
    """A member as judged: its advantage, and stretches that cover its completion."""

    member: int
    completion: Completion
    advantage: float
    stretches: tuple[Stretch, ...]

    @property
    def tokens(self) -> int:
        """Tokens inside the loss."""
        return sum(one.tokens for one in self.stretches if one.reason is None)


class Refusal(NamedTuple):
    """Why a member was refused, and how many tokens it has."""

    reason: str
    tokens: int


class Considered(NamedTuple):
    """A group as judged at `rules`. Its fates are final unless it is kept and judged again.

    `rewards` are those of the members that have one, by member.
    """

    group: Group
    rules: Rules
    verdict: Verdict
    rows: tuple[Row, ...]
    fates: Fates
    rewards: tuple[float, ...]

    @property
    def refused(self) -> list[Refusal]:
        """Members of which no token may be trained, whatever becomes of the group."""
        return [
            Refusal(row.stretches[0].reason or TRAINED, row.completion.tokens)
            for row in self.rows
            if row.stretches and not row.tokens
        ]


def consider(group: Group, rules: Rules) -> Considered:
    """Judge one group. Refused members shape the baseline, those without a reward do not.

    `unusable`: no token is inside the loss. `zero_signal`: its outcomes, before shaping, are all
    alike, or there is but one. Members that failed are none of its members: the bus booked them.
    """
    rewards = {
        m: reward
        for m, member in sorted(group.members.items())
        if (reward := _reward(member)) is not None
    }
    advantages = _advantages(rewards, rules.advantage)
    rows = tuple(
        Row(m, member.completion, advantages.get(m, 0.0), _stretches(group, m, rules))
        for m, member in sorted(group.members.items())
    )
    verdict = _verdict(rows, [_outcome(group.members[m], r) for m, r in rewards.items()])
    main = ZERO_SIGNAL if verdict == "zero_signal" else TRAINED
    fates = total(_fates(row.stretches, main) for row in rows)
    return Considered(group, rules, verdict, rows, fates, tuple(rewards.values()))


def skipped(fates: Mapping[str, Fates]) -> dict[str, Fates]:
    """The fates of groups whose step was not taken: what would have been trained was skipped."""
    return {
        group: {SKIPPED if fate == TRAINED else fate: sums for fate, sums in of_group.items()}
        for group, of_group in fates.items()
    }


def _reward(member: Member) -> float | None:
    """What a scorer sent is checked there; here it is the wire's, and may be no number."""
    reward = member.score.reward if member.score is not None else None
    return reward if reward is not None and math.isfinite(reward) else None


def _outcome(member: Member, reward: float) -> float:
    outcome = member.score.outcome if member.score is not None else None
    return outcome if outcome is not None and math.isfinite(outcome) else reward


def _advantages(rewards: Mapping[int, float], advantage: Advantage) -> dict[int, float]:
    if not rewards:
        return {}
    values = advantage(torch.tensor([*rewards.values()], dtype=torch.float64))
    return dict(zip(rewards, map(float, values), strict=True))


def _stretches(group: Group, member: int, rules: Rules) -> tuple[Stretch, ...]:
    completion = group.members[member].completion
    if reason := _refusal(group, member, rules.vocabulary):
        return (Stretch(0, completion.tokens, None, reason),)
    return mask_out(judge(completion.spans, rules.freshness), completion.mask)


def _refusal(group: Group, member: int, vocabulary: int) -> str | None:
    """Why no token of the member can be used, however fresh."""
    if _reward(group.members[member]) is None:
        return SCORER_ERROR
    return flaw(group.members[member].completion, group.prompt, vocabulary)


def _verdict(rows: Sequence[Row], outcomes: list[float]) -> Verdict:
    if not any(row.tokens for row in rows):
        return "unusable"
    alike = flat(torch.tensor(outcomes, dtype=torch.float64))
    return "zero_signal" if alike else "keep"


def _fates(stretches: Sequence[Stretch], main: str) -> Fates:
    """Tokens by fate; the member is counted once: at `main`, else at what refused it."""
    tokens: Counter[str] = Counter()
    for one in stretches:
        tokens[one.reason or main] += one.tokens
    owner = min(tokens, key=lambda fate: (fate != main, fate == MASKED, fate))
    return {fate: Sum(int(fate == owner), count) for fate, count in tokens.items()}

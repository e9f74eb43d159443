"""Groups as judged: which members and tokens a step may use, advantages, fates. † torch

How those that are worth a step become its packs is in `batch`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from pipeline.ledger import Fates, Sum, total
from pipeline.messages import Completion, Group, Member
from pipeline.protocols import Advantage
from pipeline.versions import MASKED, Freshness, Run, flaw, judge, mask_out
from services.training.advantages import flat

TRAINED = "trained"
ZERO_SIGNAL = "zero_signal"
SCORER_ERROR = "scorer_error"
CUT = "cut"

Verdict = Literal["keep", "zero_signal", "unusable"]


class Rules(NamedTuple):
    """How groups are judged at one step of the trainer."""

    freshness: Freshness
    advantage: Advantage


class Row(NamedTuple):
    """A member as judged: its advantage, and runs that cover its completion."""

    member: int
    completion: Completion
    advantage: float
    runs: tuple[Run, ...]

    @property
    def tokens(self) -> int:
        """Tokens inside the loss."""
        return sum(run.tokens for run in self.runs if run.reason is None)


class Considered(NamedTuple):
    """A group as judged at `rules`. Its fates are final unless it is kept and judged again.

    `rewards` and `outcomes` are those of the members that have one, by member.
    """

    group: Group
    rules: Rules
    verdict: Verdict
    rows: tuple[Row, ...]
    fates: Fates
    rewards: tuple[float, ...]
    outcomes: tuple[float, ...]


def consider(group: Group, rules: Rules) -> Considered:
    """Judge one group. Refused members shape the baseline, those without a reward do not.

    `unusable`: no token is inside the loss. `zero_signal`: its outcomes, before shaping, are all
    alike, or there is but one.
    """
    numbers = [m for m in sorted(group.members) if _reward(group, m) is not None]
    rewards = [_reward(group, m) or 0.0 for m in numbers]
    outcomes = [_outcome(group.members[m], r) for m, r in zip(numbers, rewards, strict=True)]
    advantages = dict(zip(numbers, _advantages(rewards, rules.advantage), strict=True))
    rows = tuple(
        Row(m, member.completion, advantages.get(m, 0.0), _runs(group, m, rules.freshness))
        for m, member in sorted(group.members.items())
    )
    verdict = _verdict(rows, outcomes)
    main = ZERO_SIGNAL if verdict == "zero_signal" else TRAINED
    fates = total(_fates(row.runs, main) for row in rows)
    return Considered(group, rules, verdict, rows, fates, tuple(rewards), tuple(outcomes))


def _reward(group: Group, member: int) -> float | None:
    score = group.members[member].score
    usable = score is not None and score.error is None and member not in group.failed
    reward = score.reward if usable and score is not None else None
    return reward if reward is not None and math.isfinite(reward) else None


def _outcome(member: Member, reward: float) -> float:
    outcome = member.score.outcome if member.score is not None else None
    return outcome if outcome is not None and math.isfinite(outcome) else reward


def _advantages(rewards: list[float], advantage: Advantage) -> list[float]:
    if not rewards:
        return []
    return [float(a) for a in advantage(torch.tensor(rewards, dtype=torch.float64))]


def _runs(group: Group, member: int, freshness: Freshness) -> tuple[Run, ...]:
    completion = group.members[member].completion
    if reason := _refusal(group, member):
        return (Run(0, completion.tokens, None, reason),)
    return mask_out(judge(completion.spans, freshness), completion.mask)


def _refusal(group: Group, member: int) -> str | None:
    """Why no token of the member can be used, however fresh."""
    if group.members[member].score is None and member not in group.failed:
        return CUT
    if _reward(group, member) is None:
        return SCORER_ERROR
    return flaw(group.members[member].completion) or (None if group.prompt.ids else "empty_prompt")


def _verdict(rows: Sequence[Row], outcomes: list[float]) -> Verdict:
    if not any(row.tokens for row in rows):
        return "unusable"
    alike = flat(torch.tensor(outcomes, dtype=torch.float64))
    return "zero_signal" if alike else "keep"


def _fates(runs: Sequence[Run], main: str) -> Fates:
    """Tokens by fate; the member is counted once: at `main`, else at what refused it."""
    tokens: Counter[str] = Counter()
    for run in runs:
        tokens[run.reason or main] += run.tokens
    owner = min(tokens, key=lambda fate: (fate != main, fate == MASKED, fate))
    return {fate: Sum(int(fate == owner), count) for fate, count in tokens.items()}

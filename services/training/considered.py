"""Groups as judged: which members and tokens a step may use, advantages, fates. † torch

How those that are worth a step become its packs is in `batch`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from msgspec.structs import replace

from pipeline.errors import Unusable
from pipeline.ledger import Fates, Sum, total
from pipeline.protocols import Advantage
from pipeline.versions import MASKED, Freshness, Stretch, judge, mask_out
from services.training.advantages import compares, flat
from services.training.briefs import SCORER_ERROR, Brief, Told
from services.training.streams import POLICY_ALONE, Coefficients
from services.training.weights import AS_GRADED, Treatment

log = logging.getLogger(__name__)

TRAINED = "trained"
ZERO_SIGNAL = "zero_signal"
SKIPPED = "skipped"
CUT_OFF = "length"

Verdict = Literal["keep", "zero_signal", "unusable"]


class Rules(NamedTuple):
    """How groups are judged at one step of the trainer."""

    freshness: Freshness
    advantage: Advantage
    streams: Coefficients = POLICY_ALONE
    treatment: Treatment = AS_GRADED

    @property
    def needs_signal(self) -> bool:
        """Whether a group whose outcomes are all alike is dropped."""
        return self.treatment.zero_signal == "drop" and compares(self.advantage)


class Row(NamedTuple):
    """A member as judged: its advantage, stretches that cover its completion, and its outcome."""

    member: int
    told: Told
    advantage: float
    stretches: tuple[Stretch, ...]
    outcome: float = 0.0

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

    `rewards` are those of the members that have one, by member, as they are learnt from.
    """

    brief: Brief
    rules: Rules
    verdict: Verdict
    rows: tuple[Row, ...]
    fates: Fates
    rewards: dict[int, float]
    has_signal: bool = True
    """Whether there is a gradient of the rewards; what was taught is worth a step without one."""

    @property
    def graded(self) -> list[int]:
        """Members that have a reward."""
        return [*self.rewards]

    @property
    def could_teach(self) -> bool:
        """Whether there would be a gradient if all of it were fresh enough."""
        outcomes = {row.outcome for row in self.rows if row.member in self.rewards}
        is_enough = len(outcomes) > 1 or (bool(outcomes) and not self.rules.needs_signal)
        return self.verdict == "keep" or is_enough

    @property
    def refused(self) -> list[Refusal]:
        """Members of which no token may be trained, whatever becomes of the group."""
        return [
            Refusal(row.stretches[0].reason or TRAINED, row.told.tokens)
            for row in self.rows
            if row.stretches and not row.tokens
        ]


def consider(brief: Brief, rules: Rules) -> Considered:
    """Judge one group. Refused members shape the baseline, those without a reward do not.

    `unusable`: no token is inside the loss. `zero_signal`: its outcomes, before shaping, are all
    alike, or there is but one, where such groups are dropped. Members that failed are none of its
    members: the bus booked them. Rewards that the advantage refuses are none, which is said.
    """
    try:
        return _judged(brief, rules)
    except Unusable as fault:  # deterministic: whoever follows this trainer would stumble as well
        log.warning("group=%s reason=%s %s", brief.group, SCORER_ERROR, fault)
        members = {m: replace(told, reward=None) for m, told in brief.members.items()}
        return _judged(replace(brief, members=members), rules)


def _judged(brief: Brief, rules: Rules) -> Considered:
    members = sorted(brief.members.items())
    marks = {m: mark for m, told in members if (mark := _mark(told, rules.treatment))}
    rewards = {m: mark.reward for m, mark in marks.items()}
    advantages = _advantages(rewards, rules.advantage)
    rows = tuple(
        Row(
            m,
            told,
            advantages.get(m, 0.0),
            _stretches(told, rules),
            marks[m].outcome if m in marks else 0.0,
        )
        for m, told in members
    )
    verdict = _verdict(rows, [mark.outcome for mark in marks.values()], rules)
    has_signal = verdict == "keep"
    if verdict == "zero_signal" and _is_taught(rows, rules):
        verdict = "keep"
    main = ZERO_SIGNAL if verdict == "zero_signal" else TRAINED
    fates = total(_fates(row.stretches, main) for row in rows)
    return Considered(brief, rules, verdict, rows, fates, rewards, has_signal)


def skipped(fates: Mapping[str, Fates]) -> dict[str, Fates]:
    """The fates of groups whose step was not taken: what would have been trained was skipped."""
    return {
        group: {SKIPPED if fate == TRAINED else fate: sums for fate, sums in of_group.items()}
        for group, of_group in fates.items()
    }


def _reward(told: Told) -> float | None:
    """What a scorer sent is checked there; here it is the wire's, and may be no number."""
    reward = told.reward
    return reward if reward is not None and math.isfinite(reward) else None


class _Mark(NamedTuple):
    reward: float
    outcome: float


def _mark(told: Told, treatment: Treatment) -> _Mark | None:
    """What is learnt from; an answer that was cut off may be worth 0, if it was graded at all."""
    reward = _reward(told)
    if reward is None:
        return None
    if treatment.truncated == "zero" and told.finish == CUT_OFF:
        return _Mark(0.0, 0.0)
    outcome = told.outcome
    return _Mark(reward, outcome if outcome is not None and math.isfinite(outcome) else reward)


def _advantages(rewards: Mapping[int, float], advantage: Advantage) -> dict[int, float]:
    if not rewards:
        return {}
    values = advantage(torch.tensor([*rewards.values()], dtype=torch.float64))
    return dict(zip(rewards, map(float, values), strict=True))


def _stretches(told: Told, rules: Rules) -> tuple[Stretch, ...]:
    if reason := SCORER_ERROR if _reward(told) is None else told.flaw:
        return (Stretch(0, told.tokens, None, reason),)
    masks = told.mask
    if rules.treatment.truncated == "mask" and told.finish == CUT_OFF:
        masks = ((0, told.tokens),)
    return mask_out(judge(told.spans, rules.freshness), masks)


def _is_taught(rows: Sequence[Row], rules: Rules) -> bool:
    """Whether a teacher has said something of a token inside the loss, and that is learnt from."""
    taught = (row.told.likeliest is not None for row in rows if row.tokens)
    return rules.streams.distillation > 0 and any(taught)


def _verdict(rows: Sequence[Row], outcomes: list[float], rules: Rules) -> Verdict:
    if not any(row.tokens for row in rows):
        return "unusable"
    alike = rules.needs_signal and flat(torch.tensor(outcomes, dtype=torch.float64))
    return "zero_signal" if alike else "keep"


def _fates(stretches: Sequence[Stretch], main: str) -> Fates:
    """Tokens by fate; the member is counted once: at `main`, else at what refused it."""
    tokens: Counter[str] = Counter()
    for one in stretches:
        tokens[one.reason or main] += one.tokens
    owner = min(tokens, key=lambda fate: (fate != main, fate == MASKED, fate))
    return {fate: Sum(int(fate == owner), count) for fate, count in tokens.items()}

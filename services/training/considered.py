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
from pipeline.verdicts import teaching_flaw
from pipeline.versions import MASKED, Freshness, Stretch, judge, mask_out
from services.training.advantages import compares, flat
from services.training.streams import POLICY_ALONE, Coefficients
from services.training.weights import AS_GRADED, Treatment

TRAINED = "trained"
ZERO_SIGNAL = "zero_signal"
SCORER_ERROR = "scorer_error"
SKIPPED = "skipped"
CUT_OFF = "length"

Verdict = Literal["keep", "zero_signal", "unusable"]


class Rules(NamedTuple):
    """How groups are judged at one step of the trainer, whose model knows `vocabulary` ids."""

    freshness: Freshness
    advantage: Advantage
    vocabulary: int
    streams: Coefficients = POLICY_ALONE
    treatment: Treatment = AS_GRADED

    @property
    def needs_signal(self) -> bool:
        """Whether a group whose outcomes are all alike is dropped."""
        return self.treatment.zero_signal == "drop" and compares(self.advantage)


class Row(NamedTuple):
    """A member as judged: its advantage, stretches that cover its completion, and its outcome."""

    member: int
    completion: Completion
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

    group: Group
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
            Refusal(row.stretches[0].reason or TRAINED, row.completion.tokens)
            for row in self.rows
            if row.stretches and not row.tokens
        ]


def consider(group: Group, rules: Rules) -> Considered:
    """Judge one group. Refused members shape the baseline, those without a reward do not.

    `unusable`: no token is inside the loss. `zero_signal`: its outcomes, before shaping, are all
    alike, or there is but one, where such groups are dropped. Members that failed are none of its
    members: the bus booked them. Raises what the advantage raises for these rewards.
    """
    members = sorted(group.members.items())
    marks = {m: mark for m, member in members if (mark := _mark(member, rules.treatment))}
    rewards = {m: mark.reward for m, mark in marks.items()}
    advantages = _advantages(rewards, rules.advantage)
    rows = tuple(
        Row(
            m,
            member.completion,
            advantages.get(m, 0.0),
            _stretches(group, m, rules),
            marks[m].outcome if m in marks else 0.0,
        )
        for m, member in members
    )
    verdict = _verdict(rows, [mark.outcome for mark in marks.values()], rules)
    has_signal = verdict == "keep"
    if verdict == "zero_signal" and _is_taught(group, rows, rules):
        verdict = "keep"
    main = ZERO_SIGNAL if verdict == "zero_signal" else TRAINED
    fates = total(_fates(row.stretches, main) for row in rows)
    return Considered(group, rules, verdict, rows, fates, rewards, has_signal)


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


class _Mark(NamedTuple):
    reward: float
    outcome: float


def _mark(member: Member, treatment: Treatment) -> _Mark | None:
    """What is learnt from; an answer that was cut off may be worth 0, if it was graded at all."""
    reward = _reward(member)
    if reward is None or member.score is None:
        return None
    if treatment.truncated == "zero" and member.completion.finish == CUT_OFF:
        return _Mark(0.0, 0.0)
    outcome = member.score.outcome
    return _Mark(reward, outcome if outcome is not None and math.isfinite(outcome) else reward)


def _advantages(rewards: Mapping[int, float], advantage: Advantage) -> dict[int, float]:
    if not rewards:
        return {}
    values = advantage(torch.tensor([*rewards.values()], dtype=torch.float64))
    return dict(zip(rewards, map(float, values), strict=True))


def _stretches(group: Group, member: int, rules: Rules) -> tuple[Stretch, ...]:
    completion = group.members[member].completion
    if reason := _refusal(group, member, rules.vocabulary):
        return (Stretch(0, completion.tokens, None, reason),)
    masks = completion.mask
    if rules.treatment.truncated == "mask" and completion.finish == CUT_OFF:
        masks = ((0, completion.tokens),)
    return mask_out(judge(completion.spans, rules.freshness), masks)


def _refusal(group: Group, member: int, vocabulary: int) -> str | None:
    """Why no token of the member can be used, however fresh."""
    if _reward(group.members[member]) is None:
        return SCORER_ERROR
    if _is_mistaught(group.members[member], vocabulary):
        return SCORER_ERROR
    return flaw(group.members[member].completion, group.prompt, vocabulary)


def _is_mistaught(member: Member, vocabulary: int) -> bool:
    """Whether a teacher's word does not fit to the completion."""
    teaching = member.score.teaching if member.score is not None else None
    if teaching is None:
        return False
    return bool(teaching_flaw(teaching, tokens=member.completion.tokens, vocabulary=vocabulary))


def _is_taught(group: Group, rows: Sequence[Row], rules: Rules) -> bool:
    """Whether a teacher has said something of a token inside the loss, and that is learnt from."""
    return rules.streams.distillation > 0 and any(
        (score := group.members[row.member].score) and score.teaching for row in rows if row.tokens
    )


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

"""What one step shows of a reward that is being gamed: by length, by repetition, by its shadows.

Counted over all members that were scored of the groups that have ended, trained or not: of a policy
that has collapsed no group is trained. Each group ends once, whoever leads, so none counts twice.
What some steps come to is in `gaming`. Torch-free.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import mul
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from pipeline.watch.gaming import ATTEMPTS, BELOW_BEST, PROMPTS
from services.training.briefs import Brief, Told

FLAT = 1e-9
"""Deviations of so little, of what they deviate from, are rounding."""


class Shadowed(Struct, frozen=True):
    """A shadow scorer's mean reward over so many members, and the mean of their own."""

    shadow: float
    reward: float
    members: int


class Correlation(NamedTuple):
    """Of two numbers; `freedom` is how many members it is of, less the groups' means and one."""

    r: float
    freedom: int


def told_of(groups: Iterable[Brief]) -> dict[str, Any]:
    """A step's own figures, as metrics.jsonl has them; None where nothing differs."""
    whole = [*groups]
    scored = [_scored(group) for group in whole]
    length = correlation([[(one.reward, one.told.tokens) for one in group] for group in scored])
    answers = [[one.told.digest for one in group if one.told.digest] for group in scored]
    prompts = [group.digest for group in whole]
    return {
        "length_correlation": length.r if length else None,
        "length_freedom": length.freedom if length else 0,
        "repeated": {
            ATTEMPTS: repeated(answers),
            BELOW_BEST: repeated(answers, counted=_below_best(scored)),
            PROMPTS: commonest(zip(prompts, answers, strict=True)),
        },
        "shadow": {name: to_builtins(one) for name, one in sorted(_shadowed(scored).items())},
    }


def correlation(groups: Iterable[Sequence[tuple[float, float]]]) -> Correlation | None:
    """Of the pairs (x, y) of a group, within groups; None where one of the two is constant.

    r = Σ (x - x̄_g)(y - ȳ_g) / √(Σ (x - x̄_g)² Σ (y - ȳ_g)²) with the group's own means, and
    N - groups - 1 degrees of freedom (Bland and Altman, 1995, Calculating correlation coefficients
    with repeated observations: correlation within subjects). That hard prompts get long answers and
    little reward is between groups, and no matter.
    """
    xy = xx = yy = 0.0
    freedom = -1
    for group in groups:
        if len(group) < 2:
            continue
        dx, dy = (_centred(column) for column in zip(*group, strict=True))
        xy += sum(map(mul, dx, dy))
        xx += sum(map(mul, dx, dx))
        yy += sum(map(mul, dy, dy))
        freedom += len(group) - 1
    if not (xx and yy) or freedom < 1:
        return None
    return Correlation(max(-1.0, min(1.0, xy / math.sqrt(xx * yy))), freedom)


def repeated(
    groups: Sequence[Sequence[bytes]], *, counted: Sequence[Sequence[bytes]] | None = None
) -> float | None:
    """Of the answers of a group after the first, the share that has been there before.

    With `counted` only these of each group count as repeated, of all the same.
    """
    others = sum(len(group) - 1 for group in groups if group)
    again = sum(len(group) - len({*group}) for group in (groups if counted is None else counted))
    return again / others if others else None


def commonest(groups: Iterable[tuple[bytes, Sequence[bytes]]]) -> float | None:
    """The share, of all answers, of the one most often given of those to different prompts.

    A group is its prompt and its answers. 0 where each answer is to one prompt; None where there is
    but one.
    """
    by_prompt: dict[bytes, list[bytes]] = {}
    for prompt, answers in groups:
        by_prompt.setdefault(prompt, []).extend(answers)
    told = [answers for answers in by_prompt.values() if answers]
    if len(told) < 2:
        return None
    counts = Counter(answer for answers in told for answer in answers)
    prompts = Counter(answer for answers in told for answer in {*answers})
    most = max((counts[answer] for answer, number in prompts.items() if number > 1), default=0)
    return most / counts.total()


def _centred(column: Sequence[float]) -> list[float]:
    mean = fmean(column)
    out = [value - mean for value in column]
    return [0.0] * len(out) if max(map(abs, out)) <= FLAT * max(map(abs, column)) else out


class _Scored(NamedTuple):
    reward: float
    told: Told


def _scored(group: Brief) -> list[_Scored]:
    members = [(told.reward, told) for told in group.members.values()]
    return [_Scored(r, told) for r, told in members if r is not None and math.isfinite(r)]


def _below_best(groups: Sequence[Sequence[_Scored]]) -> list[list[bytes]]:
    """The answers whose outcome is less than the best of the step, or not above 0."""
    best = max((_outcome(one) for group in groups for one in group), default=0.0)
    return [
        [one.told.digest for one in group if one.told.digest and not _outcome(one) >= best > 0]
        for group in groups
    ]


def _outcome(one: _Scored) -> float:
    outcome = one.told.outcome
    return outcome if outcome is not None and math.isfinite(outcome) else one.reward


def _shadowed(groups: Iterable[Sequence[_Scored]]) -> dict[str, Shadowed]:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for one in (member for group in groups for member in group):
        for name, shadow in one.told.shadow.items():
            if math.isfinite(shadow):
                pairs.setdefault(name.partition("/")[0], []).append((shadow, one.reward))
    return {name: _means(found) for name, found in pairs.items()}


def _means(pairs: Sequence[tuple[float, float]]) -> Shadowed:
    shadow, reward = (fmean(column) for column in zip(*pairs, strict=True))
    return Shadowed(shadow, reward, len(pairs))

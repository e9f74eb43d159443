"""What a step shows of a reward that is being gamed, and what that comes to over some steps.

Counted over all members that were scored of the groups that have ended, trained or not: of a policy
that has collapsed no group is trained. Each group ends once, whoever leads, so none counts twice.
Torch-free. From where on it is told: `pipeline.watch.gaming`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import mul
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from pipeline.watch.gaming import AMONG, ATTEMPTS, BELOW_BEST, PROMPTS, Signs
from services.training.briefs import Brief, Told

WINDOW_STEPS = 50
LEAST_STEPS = 10
"""Of those in the window that say something: over fewer nothing is told. A policy that finds a way
to cheat may need but twenty steps to do nothing else."""
LEAST_FREEDOM = 100
"""Of all correlations in the window: then what is by chance stays below 0.3."""
BLOCK_STEPS = 10
MOST_ERRORS = 99.0
"""Standard errors; where there is no noise they would be without bound."""
FLAT = 1e-9
"""Deviations of so little, of what they deviate from, are rounding."""
LEAST_ERROR = 1e-9
"""In place of a standard error of 0."""


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


class Gaming:
    """Means over the last steps, and for each shadow how it and the reward went apart.

    It is told each line of metrics.jsonl once, those of trainers before this one as well.
    """

    def __init__(self) -> None:
        self._length = Window(LEAST_FREEDOM)
        self._repeated = {among: Window() for among in AMONG}
        self._trends: dict[str, Trend] = {}

    def observe(self, line: Mapping[str, Any]) -> None:
        """One step; a line of an earlier release says nothing."""
        self._length.add(line.get("length_correlation"), line.get("length_freedom", 0))
        for among, window in self._repeated.items():
            window.add(line.get("repeated", {}).get(among))
        for name, one in line.get("shadow", {}).items():
            self._trends.setdefault(name, Trend()).add(one["reward"], one["shadow"])

    def signs(self) -> Signs:
        """As they stand; correlations are weighed by their degrees of freedom."""
        return Signs(
            length=self._length.mean(),
            repeated={among: window.mean() for among, window in self._repeated.items()},
            divergence={name: trend.divergence for name, trend in self._trends.items()},
        )


class Window:
    """A figure of the last steps, of those that have it."""

    def __init__(self, least: float = LEAST_STEPS) -> None:
        """`least` is what their weights come to at least, before anything is said."""
        self._least = least
        self._steps: deque[tuple[float | None, float]] = deque(maxlen=WINDOW_STEPS)

    def add(self, value: float | None, weight: float = 1.0) -> None:
        """That of one more step; None where it has none."""
        self._steps.append((value, weight))

    def mean(self) -> float | None:
        """By weight; None while too few of the steps have a value."""
        known = [(value, weight) for value, weight in self._steps if value is not None]
        if len(known) < LEAST_STEPS or sum(weight for _, weight in known) < self._least:
            return None
        return fmean([value for value, _ in known], [weight for _, weight in known])


class _Block(NamedTuple):
    """Means over some steps, and the squares of their standard errors."""

    reward: float
    reward_error: float
    shadow: float
    shadow_error: float


class Trend:
    """How a reward and its shadow went since the shadow was at its best, block by block of steps.

    An honest reward takes its shadow along; of one that is optimised too far the shadow has its
    best behind it (Gao et al., 2022, Scaling laws for reward model overoptimization).
    """

    def __init__(self) -> None:
        self.divergence: float | None = None
        self._rewards: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._shadows: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._steps, self._best = 0, _Block(0.0, 0.0, -math.inf, 0.0)

    def add(self, reward: float, shadow: float) -> None:
        """Means of a step, over the same members."""
        self._rewards.append(reward)
        self._shadows.append(shadow)
        self._steps += 1
        if self._steps % BLOCK_STEPS:
            return
        block = _Block(*_newest(self._rewards), *_newest(self._shadows))
        if self._steps > BLOCK_STEPS:
            self.divergence = _apart(self._best, block)
        if block.shadow > self._best.shadow:
            self._best = block


def _apart(best: _Block, now: _Block) -> float:
    """The lesser of the reward's rise and the shadow's fall, in standard errors of each."""
    rise = (now.reward - best.reward) / _error(now.reward_error + best.reward_error)
    fall = (best.shadow - now.shadow) / _error(now.shadow_error + best.shadow_error)
    return max(-MOST_ERRORS, min(rise, fall, MOST_ERRORS))


def _error(square: float) -> float:
    return max(math.sqrt(square), LEAST_ERROR)


def _newest(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a block's steps, and the square of its standard error by the noise of them all.

    The noise of a step is half the mean square of the differences from step to step, which a trend
    does not add to (von Neumann, 1941, Distribution of the ratio of the mean square successive
    difference to the variance).
    """
    noise = fmean([(later - one) ** 2 for one, later in pairwise(values)]) / 2
    return fmean([*values][-BLOCK_STEPS:]), noise / BLOCK_STEPS


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

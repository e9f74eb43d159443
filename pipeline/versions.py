"""Which tokens of a member are fresh enough to train on. Pure.

Lag is the trainer's step less the step that made the version, in optimizer steps. Which members are
whole at all is in `flaws`; what a refusal does to a group is in `services.training.considered`, and
to a batch in `.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pipeline.messages import Span

Unit = Literal["sample", "token", "mean"]

STALE = "stale"
FUTURE = "future_version"
ORPHAN = "orphan_version"
MASKED = "masked"


class Freshness(NamedTuple):
    """What a member is judged by: the trainer's step, the step of each version that it knows.

    With `unit` sample the oldest token decides about its member, with token about itself alone;
    with mean the mean lag of all its tokens does.
    """

    step: int
    steps: Mapping[int, int]
    lag_max: int
    unit: Unit


class Stretch(NamedTuple):
    """Tokens `start` to `stop` of a completion; `reason` None: kept. `lag` None: nobody knows."""

    start: int
    stop: int
    lag: int | None
    reason: str | None

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return self.stop - self.start


def judge(spans: Sequence[Span], freshness: Freshness) -> tuple[Stretch, ...]:
    """A stretch for each span. A future or an orphaned token refuses its whole member."""
    stretches = tuple(_stretches(spans, freshness))
    reasons = {one.reason for one in stretches}
    for reason in (ORPHAN, FUTURE):
        if reason in reasons:
            return _all(stretches, reason)
    match freshness.unit:
        case "sample":
            return _all(stretches, STALE) if STALE in reasons else stretches
        case "mean":
            return _all(stretches, STALE if _mean_lag(stretches) > freshness.lag_max else None)
    return stretches


def mask_out(stretches: Sequence[Stretch], masks: Sequence[tuple[int, int]]) -> tuple[Stretch, ...]:
    """The stretches with the kept tokens inside the masks `(start, stop)` split off as `masked`."""
    return tuple(
        part
        for one in stretches
        for part in (_split(one, sorted(masks)) if one.reason is None else (one,))
    )


def _all(stretches: tuple[Stretch, ...], reason: str | None) -> tuple[Stretch, ...]:
    return tuple(one._replace(reason=reason) for one in stretches)


def _mean_lag(stretches: tuple[Stretch, ...]) -> float:
    """Weighted by tokens; every lag is known here."""
    tokens = sum(one.tokens for one in stretches)
    return sum((one.lag or 0) * one.tokens for one in stretches) / max(1, tokens)


def _stretches(spans: Sequence[Span], freshness: Freshness) -> Iterator[Stretch]:
    start = 0
    for span in spans:
        made = freshness.steps.get(span.version)
        lag = None if made is None else freshness.step - made
        if span.tokens:
            yield Stretch(start, start + span.tokens, lag, _reason(lag, freshness.lag_max))
        start += span.tokens


def _reason(lag: int | None, lag_max: int) -> str | None:
    if lag is None:
        return ORPHAN
    if lag < 0:
        return FUTURE
    return STALE if lag > lag_max else None


def _split(whole: Stretch, masks: Sequence[tuple[int, int]]) -> Iterator[Stretch]:
    at = whole.start
    for start, stop in masks:
        first, last = max(start, at), min(stop, whole.stop)
        if first >= last:
            continue
        if at < first:
            yield whole._replace(start=at, stop=first)
        yield whole._replace(start=first, stop=last, reason=MASKED)
        at = last
    if at < whole.stop:
        yield whole._replace(start=at)

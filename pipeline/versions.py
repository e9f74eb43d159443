"""Which tokens of a member are fresh enough to train on, and which members are whole at all. Pure.

Lag is the trainer's step less the step that made the version, in optimizer steps. What a refusal
does to a group and a batch is in `services.training.batch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pipeline.messages import Completion, Span

Unit = Literal["sample", "token"]

STALE = "stale"
FUTURE = "future_version"
ORPHAN = "orphan_version"
MASKED = "masked"


class Freshness(NamedTuple):
    """What a member is judged by: the trainer's step, the step of each version that it knows.

    With `unit` sample the oldest token decides about its member, with token about itself alone.
    """

    step: int
    steps: Mapping[int, int]
    lag_max: int
    unit: Unit


class Run(NamedTuple):
    """Tokens `start` to `stop` of a completion; `reason` None: kept. `lag` None: nobody knows."""

    start: int
    stop: int
    lag: int | None
    reason: str | None

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return self.stop - self.start


def judge(spans: Sequence[Span], freshness: Freshness) -> tuple[Run, ...]:
    """A run for each span. A future or an orphaned token refuses its whole member."""
    runs = tuple(_runs(spans, freshness))
    reasons = {run.reason for run in runs}
    decisive = (ORPHAN, FUTURE, STALE) if freshness.unit == "sample" else (ORPHAN, FUTURE)
    for reason in decisive:
        if reason in reasons:
            return tuple(run._replace(reason=reason) for run in runs)
    return runs


def mask_out(runs: Sequence[Run], masks: Sequence[tuple[int, int]]) -> tuple[Run, ...]:
    """The runs with the kept tokens inside the masks `(start, stop)` split off as `masked`."""
    return tuple(
        part
        for run in runs
        for part in (_split(run, sorted(masks)) if run.reason is None else (run,))
    )


def flaw(completion: Completion) -> str | None:
    """Why the completion cannot be used whatever its age, or None."""
    ids, logprobs = len(completion.ids), len(completion.logprobs)
    if ids == 0:
        return "empty_completion"
    if ids % 4 or logprobs != ids:
        return "logprob_length"
    lengths = [span.tokens for span in completion.spans]
    if min(lengths, default=0) < 0 or sum(lengths) != completion.tokens:
        return "span_length"
    # One sum is quick, and in double no sum of finite single floats overflows.
    total = sum(memoryview(completion.logprobs).cast("f"))
    return None if math.isfinite(total) else "nonfinite_logprob"


def _runs(spans: Sequence[Span], freshness: Freshness) -> Iterator[Run]:
    start = 0
    for span in spans:
        made = freshness.steps.get(span.version)
        lag = None if made is None else freshness.step - made
        if span.tokens:
            yield Run(start, start + span.tokens, lag, _reason(lag, freshness.lag_max))
        start += span.tokens


def _reason(lag: int | None, lag_max: int) -> str | None:
    if lag is None:
        return ORPHAN
    if lag < 0:
        return FUTURE
    return STALE if lag > lag_max else None


def _split(run: Run, masks: Sequence[tuple[int, int]]) -> Iterator[Run]:
    at = run.start
    for start, stop in masks:
        first, last = max(start, at), min(stop, run.stop)
        if first >= last:
            continue
        if at < first:
            yield run._replace(start=at, stop=first)
        yield run._replace(start=first, stop=last, reason=MASKED)
        at = last
    if at < run.stop:
        yield run._replace(start=at)

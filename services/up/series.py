"""Steps to columns for a plot: pure means over bins of a run's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from services.up.journal import StepLine

SERIES_POINTS = 400


class Series(Struct, frozen=True, kw_only=True):
    """Columns over the steps, thinned to some hundreds: means, but for lag_max and the ends."""

    step: list[float] = []
    seconds: list[float] = []
    reward: list[float | None] = []
    lag_mean: list[float | None] = []
    lag_max: list[float | None] = []
    tokens_per_second: list[float | None] = []
    idle_share: list[float | None] = []


def thin(lines: Sequence[StepLine], points: int = SERIES_POINTS) -> Series:
    """The steps in at most `points` bins: means over each, the last step and second of each."""
    width = max(1, -(-len(lines) // points))
    bins = [lines[at : at + width] for at in range(0, len(lines), width)]
    return Series(
        step=[float(part[-1].step) for part in bins],
        seconds=[part[-1].seconds for part in bins],
        reward=[mean([line.reward for line in part]) for part in bins],
        lag_mean=[
            mean([line.lag_mean for line in part], [line.tokens for line in part]) for part in bins
        ],
        lag_max=[max((line.lag_max or 0.0 for line in part), default=None) for part in bins],
        tokens_per_second=[ratio(tokens, spent) for tokens, spent in _rates(bins)],
        idle_share=[
            ratio(sum(line.idle_seconds for line in part), sum(map(_spent, part))) for part in bins
        ],
    )


def mean(values: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """The weighted mean of what is known; None where nothing is."""
    weights = weights or [1.0] * len(values)
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    return ratio(sum(v * w for v, w in known), sum(w for _, w in known))


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None without a whole."""
    return part / whole if whole else None


def _spent(line: StepLine) -> float:
    return line.busy_seconds + line.idle_seconds + line.other_seconds


def _rates(bins: Sequence[Sequence[StepLine]]) -> Iterator[tuple[float, float]]:
    before = 0.0
    for part in bins:
        yield sum(line.tokens for line in part), part[-1].seconds - before
        before = part[-1].seconds

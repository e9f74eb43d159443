"""Steps to columns for a plot: pure means over bins of a run's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from services.view.journal import StepLine

SERIES_POINTS = 400


class Series(Struct, frozen=True, kw_only=True):
    """Columns over the steps, thinned to some hundreds: means, but for lag_max and the ends.

    `tokens_per_second` are those trained. `shadow` has the rewards of scorers that only watch.
    """

    step: list[float] = []
    seconds: list[float] = []
    reward: list[float | None] = []
    lag_mean: list[float | None] = []
    lag_max: list[float | None] = []
    generated_per_second: list[float | None] = []
    tokens_per_second: list[float | None] = []
    mismatch_k3: list[float | None] = []
    shadow: dict[str, list[float | None]] = {}


def thin(lines: Sequence[StepLine], points: int = SERIES_POINTS) -> Series:
    """The steps in at most `points` bins: means over each, the last step and second of each."""
    width = max(1, -(-len(lines) // points))
    bins = [lines[at : at + width] for at in range(0, len(lines), width)]
    return Series(
        step=[float(part[-1].step) for part in bins],
        seconds=[part[-1].seconds for part in bins],
        reward=[mean([line.reward for line in part]) for part in bins],
        lag_mean=[by_tokens(part, "lag_mean") for part in bins],
        lag_max=[largest_lag(part) for part in bins],
        generated_per_second=_growth(bins),
        tokens_per_second=[ratio(tokens, spent) for tokens, spent in _rates(bins)],
        mismatch_k3=[by_tokens(part, "mismatch_k3") for part in bins],
        shadow={name: [_shadow(part, name) for part in bins] for name in _shadows(lines)},
    )


def _shadows(lines: Sequence[StepLine]) -> list[str]:
    return sorted({name for line in lines for name in line.shadow})


def _shadow(lines: Sequence[StepLine], name: str) -> float | None:
    return mean([line.shadow[name].shadow for line in lines if name in line.shadow])


def by_tokens(lines: Sequence[StepLine], name: str) -> float | None:
    """The mean of a number of the steps, weighted by their tokens."""
    return mean([getattr(line, name) for line in lines], [line.tokens for line in lines])


def largest_lag(lines: Sequence[StepLine]) -> float | None:
    """Of the oldest token of all; None where no step knows."""
    return max((lag for line in lines if (lag := line.lag_max) is not None), default=None)


def mean(values: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """The weighted mean of what is known; None where nothing is."""
    weights = weights or [1.0] * len(values)
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    return ratio(sum(v * w for v, w in known), sum(w for _, w in known))


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None without a whole."""
    return part / whole if whole else None


def _rates(bins: Sequence[Sequence[StepLine]]) -> Iterator[tuple[float, float]]:
    before = 0.0
    for part in bins:
        yield sum(line.tokens for line in part if line.finite), part[-1].seconds - before
        before = part[-1].seconds


def _growth(bins: Sequence[Sequence[StepLine]]) -> list[float | None]:
    """Tokens generated a second, from the end of one bin to that of the next."""
    out: list[float | None] = []
    before = StepLine(step=0, generated_tokens=0)
    for part in bins:
        last = part[-1]
        if before.generated_tokens is None or last.generated_tokens is None:
            out.append(None)
        else:
            grown = last.generated_tokens - before.generated_tokens
            out.append(ratio(grown, last.seconds - before.seconds))
        before = last
    return out

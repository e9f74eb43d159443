"""Pure sums over the beats of a snapshot: what the panel and the report both count."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from pipeline.clock import ACTIVITIES
from pipeline.ledger import GENERATED, Fates
from pipeline.watch import Seen, by_label, total

NO_REFUSAL = (GENERATED, "trained", "zero_signal", "cancelled")


def refused(ledger: Fates) -> dict[str, int]:
    """Members that taught nothing, by fate; of a member that was trained no token counts here."""
    return {f: s.members for f, s in sorted(ledger.items()) if f not in NO_REFUSAL and s.members}


def shares(beats: Iterable[Seen]) -> dict[str, float | None]:
    """Seconds by activity over the wall seconds of the same processes; None before their first."""
    beats = list(beats)
    wall = total(beats, "wall_seconds")
    seconds = by_label(beats, "loop_seconds")
    return {a: seconds.get(a, 0.0) / wall if wall else None for a in ACTIVITIES}


def median_gauge(beats: Iterable[Seen], name: str) -> float | None:
    """The median over those processes that have the number yet."""
    known = _known(beats, name)
    return statistics.median(known) if known else None


def largest_gauge(beats: Iterable[Seen], name: str) -> float | None:
    """The largest of those processes that have the number yet."""
    return max(_known(beats, name), default=None)


def _known(beats: Iterable[Seen], name: str) -> list[float]:
    values = [seen.beat.gauges.get(name, math.nan) for seen in beats]
    return [value for value in values if math.isfinite(value)]

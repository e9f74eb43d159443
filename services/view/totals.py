"""Pure sums over the beats of a snapshot: what the panel and the report both count."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable

from pipeline.ledger import GENERATED, Fates
from pipeline.watch import Seen

NO_REFUSAL = (GENERATED, "trained", "zero_signal", "cancelled")
ACTIVITIES = ("busy", "idle", "other")
_LABEL = re.compile(r'^(\w+)\{\w+="([^"]*)"\}$')


def refused(ledger: Fates) -> dict[str, int]:
    """Members that taught nothing, by fate; of a member that was trained no token counts here."""
    return {f: s.members for f, s in sorted(ledger.items()) if f not in NO_REFUSAL and s.members}


def total(beats: Iterable[Seen], name: str) -> float:
    """One counter added up."""
    return sum(seen.beat.totals.get(name, 0.0) for seen in beats)


def by_label(beats: Iterable[Seen], name: str) -> dict[str, float]:
    """A counter with one label, added up by its values, as in `refused_members`."""
    out: dict[str, float] = {}
    for seen in beats:
        for key, value in seen.beat.totals.items():
            match = _LABEL.match(key)
            if match and match[1] == name:
                out[match[2]] = out.get(match[2], 0.0) + value
    return out


def shares(beats: Iterable[Seen]) -> dict[str, float | None]:
    """Seconds by activity over the wall seconds of the same processes; None before their first."""
    beats = list(beats)
    wall = total(beats, "wall_seconds")
    seconds = by_label(beats, "loop_seconds")
    return {a: seconds.get(a, 0.0) / wall if wall else None for a in ACTIVITIES}


def median_gauge(beats: Iterable[Seen], name: str) -> float | None:
    """The median over those processes that have the number yet."""
    values = [seen.beat.gauges.get(name, math.nan) for seen in beats]
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else None

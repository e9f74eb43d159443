"""Counters and gauges of one process, on a registry of its own.

The same numbers leave by two doors: Prometheus scrapes them, and each beat carries them to the
panel and the report. Names: `sluice_<service>_<noun>_<unit>[_total]`, base units, few labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)

Activity = Literal["busy", "idle", "other"]


# A second series for each counter, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The registry of one service; each service declares its numbers in its `metrics.py`."""

    def __init__(self, service: str) -> None:
        self.prefix = f"sluice_{service}_"
        self.registry = CollectorRegistry()

    def counter(self, noun: str, text: str, *labels: str) -> Counter:
        """A number that only grows; `_total` is added to its name."""
        return Counter(f"{self.prefix}{noun}", text, labels, registry=self.registry)

    def gauge(self, noun: str, text: str, *labels: str) -> Gauge:
        """A number that goes up and down."""
        return Gauge(f"{self.prefix}{noun}", text, labels, registry=self.registry)

    def exposition(self) -> bytes:
        """What Prometheus scrapes."""
        return generate_latest(self.registry)

    def totals(self) -> dict[str, float]:
        """Every counter by its short name, as in `tokens` or `loop_seconds{activity="busy"}`."""
        return self._values("counter", "_total")

    def gauges(self) -> dict[str, float]:
        """Every gauge by its short name."""
        return self._values("gauge", "")

    def _values(self, kind: str, suffix: str) -> dict[str, float]:
        out = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if family.type == kind and sample.name == family.name + suffix:
                    labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items())
                    name = family.name.removeprefix(self.prefix)
                    out[f"{name}{{{labels}}}" if labels else name] = sample.value
        return out


class Clock:
    """Where the seconds of a loop go: busy, idle (blocked on input) or other, each timed itself.

    Nothing is derived: wall is measured on its own, so that the three can be checked against it.
    """

    def __init__(self, metrics: Metrics) -> None:
        seconds = metrics.counter(
            "loop_seconds",
            "Seconds of the loop: busy, idle (blocked on input) or other.",
            "activity",
        )
        self._seconds = {a: seconds.labels(activity=a) for a in ("busy", "idle", "other")}
        self._wall = metrics.counter(
            "wall_seconds", "Seconds from the loop's first block to its latest."
        )
        self._last: float | None = None
        self._lap: dict[Activity, float] = {"busy": 0.0, "idle": 0.0, "other": 0.0}

    @contextmanager
    def __call__(self, activity: Activity) -> Iterator[None]:
        """Times the block."""
        started = time.perf_counter()
        if self._last is None:
            self._last = started
        try:
            yield
        finally:
            now = time.perf_counter()
            self._seconds[activity].inc(now - started)
            self._lap[activity] += now - started
            self._wall.inc(now - self._last)
            self._last = now

    def lap(self) -> dict[str, float]:
        """Seconds by activity since the last lap, as `busy_seconds` and so on."""
        lap = {f"{activity}_seconds": spent for activity, spent in self._lap.items()}
        self._lap = dict.fromkeys(self._lap, 0.0)
        return lap

"""Counters, gauges and histograms of one process, on a registry of its own.

The same numbers leave by two doors: Prometheus scrapes them, and each beat carries the counters and
gauges to the panel and the report. Names: `sluice_<service>_<noun>_<unit>[_total]`, base units. A
label's values are declared with the metric, or bounded in number, so that no input can make more
series of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Generic, Literal, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from pipeline.curve import Curve

OTHER = "other"
"""The value of a label that was not declared."""

MOST_MET = 32
LONGEST_MET = 64

C = TypeVar("C", Counter, Gauge)


# A second series for each counter, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Declared(NamedTuple):
    """A metric as Prometheus sees it, and the values that its labels may have; none: any that come,
    up to a bound."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: dict[str, Sequence[str]]
    text: str


class Labelled(Generic[C]):
    """A metric with a series for each combination of its labels' values, all there from the start.

    A series that began with its first event would hide that event: nothing is known to have grown.
    """

    def __init__(self, metric: C, labels: dict[str, Sequence[str]]) -> None:
        self._metric: C = metric
        self._known = labels
        # Loops count with every turn, and the library's own way to a series takes a while.
        self._series: dict[tuple[str, ...], C] = {
            values: metric.labels(*values) for values in product(*labels.values())
        }

    def labels(self, **given: str) -> C:
        """The series; what was not declared counts as `other`."""
        values = tuple(given[name] for name in self._known)
        return self._series.get(values) or self._other(given)

    def _other(self, given: dict[str, str]) -> C:
        known = self._known
        bounded = {name: v if v in known[name] else OTHER for name, v in given.items()}
        series: C = self._metric.labels(**bounded)
        return series


class Met:
    """A counter whose labels' values are not known beforehand: strangers name them.

    For each value of the first label the first `MOST_MET` of the second are told apart, and of the
    first label as many; all others count as `other`.
    """

    def __init__(self, metric: Counter, outer: str, inner: str) -> None:
        self._metric, self._outer, self._inner = metric, outer, inner
        self._met: dict[str, set[str]] = {}
        metric.labels(OTHER, OTHER)

    def labels(self, **given: str) -> Counter:
        """The series; a value is one line of `LONGEST_MET` letters at most."""
        outer, inner = (
            " ".join(given[name].split())[:LONGEST_MET] for name in (self._outer, self._inner)
        )
        outer = _known(outer, self._met)
        met = self._met.setdefault(outer, set())
        inner = _known(inner, met)
        met.add(inner)
        return self._metric.labels(**{self._outer: outer, self._inner: inner})


def _known(value: str, met: Collection[str]) -> str:
    return value if value in met or len(met) < MOST_MET else OTHER


class Metrics:
    """The registry of one service; each service declares its numbers in its `metrics.py`."""

    def __init__(self, service: str, **of: str) -> None:
        """`of` labels all that is scraped: the run, and the instance."""
        self.prefix, self._of = f"sluice_{service}_", of
        self.registry = CollectorRegistry()
        self.declared: list[Declared] = []
        self._counters: list[Counter] = []
        self._gauges: list[Gauge] = []
        self._beside: list[Metrics] = []
        self._curves: dict[str, Curve] = {}

    def alike(self, subject: str) -> Metrics:
        """For numbers of another subject, labelled alike: scraped once `serve` is told of them."""
        return Metrics(subject, **self._of)

    def serve(self, other: Metrics) -> None:
        """Scraped at the same door from now on; no beat carries them."""
        self._beside.append(other)

    def counter(self, noun: str, text: str) -> Counter:
        """A number that only grows; `_total` is added to its name."""
        return self._counter(noun, text, {})

    def counter_by(self, noun: str, text: str, **labels: Sequence[str]) -> Labelled[Counter]:
        """A counter for each combination of the labels' values."""
        return Labelled(self._counter(noun, text, labels), labels)

    def counter_met(self, noun: str, text: str, outer: str, inner: str) -> Met:
        """A counter for each pair of values that come, up to a bound."""
        return Met(self._counter(noun, text, {outer: (), inner: ()}), outer, inner)

    def gauge(self, noun: str, text: str) -> Gauge:
        """A number that goes up and down."""
        return self._gauge(noun, text, {})

    def gauge_by(self, noun: str, text: str, **labels: Sequence[str]) -> Labelled[Gauge]:
        """A gauge for each combination of the labels' values."""
        return Labelled(self._gauge(noun, text, labels), labels)

    def histogram(self, noun: str, text: str, bounds: Sequence[float]) -> Histogram:
        """How often a number was at most each of the bounds."""
        self._declare("histogram", noun, text, {})
        return Histogram(f"{self.prefix}{noun}", text, registry=self.registry, buckets=bounds)

    def curve(self, noun: str) -> Curve:
        """A number over the steps of the run, for the beat alone: who looks later sees it all."""
        return self._curves.setdefault(noun, Curve())

    def exposition(self) -> bytes:
        """What Prometheus scrapes."""
        own = generate_latest(_Stamped(self.registry, self._of))
        return own + b"".join(other.exposition() for other in self._beside)

    def totals(self) -> dict[str, float]:
        """Every counter by its short name, as in `tokens` or `loop_seconds{activity="busy"}`."""
        return self._values(self._counters, "_total")

    def gauges(self) -> dict[str, float]:
        """Every gauge by its short name."""
        return self._values(self._gauges, "")

    def curves(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Every curve by its name, as points from the first step to the last."""
        return {noun: curve.points() for noun, curve in self._curves.items()}

    def _counter(self, noun: str, text: str, labels: dict[str, Sequence[str]]) -> Counter:
        self._declare("counter", f"{noun}_total", text, labels)
        made = Counter(f"{self.prefix}{noun}", text, (*labels,), registry=self.registry)
        self._counters.append(made)
        return made

    def _gauge(self, noun: str, text: str, labels: dict[str, Sequence[str]]) -> Gauge:
        self._declare("gauge", noun, text, labels)
        made = Gauge(f"{self.prefix}{noun}", text, (*labels,), registry=self.registry)
        self._gauges.append(made)
        return made

    def _declare(
        self,
        kind: Literal["counter", "gauge", "histogram"],
        noun: str,
        text: str,
        labels: dict[str, Sequence[str]],
    ) -> None:
        self.declared.append(Declared(f"{self.prefix}{noun}", kind, labels, text))

    def _values(self, metrics: Sequence[Counter | Gauge], suffix: str) -> dict[str, float]:
        out = {}
        for family in (family for metric in metrics for family in metric.collect()):
            for sample in family.samples:
                labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items())
                name = sample.name.removeprefix(self.prefix).removesuffix(suffix)
                out[f"{name}{{{labels}}}" if labels else name] = sample.value
        return out


class _Stamped(CollectorRegistry):
    """A registry whose samples all say of what they are."""

    def __init__(self, registry: CollectorRegistry, of: dict[str, str]) -> None:
        super().__init__()
        self._registry, self._of = registry, of

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [s._replace(labels={**self._of, **s.labels}) for s in family.samples]
            yield family

"""Dashboards as values: what a panel says and shows. How Grafana reads it is in `render`."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["timeseries", "stat", "bargauge", "heatmap"]

COLUMNS = 24


class Query(NamedTuple):
    """PromQL, and what its lines are called; a `bound` is a dashed line beside the others."""

    expr: str
    legend: str = ""
    bound: bool = False


class Panel(NamedTuple):
    """`text` is its description; `limits` are values from which it turns orange, then red.

    With `falling` the limits are lower bounds. `see` is a title of the runbook. The axis goes from
    `least` to `most` where they are given, and otherwise to `reach` at least: curves that are 0 as
    long as all is well need that, or Grafana draws them on an axis up to 100.
    """

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str
    see: str
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    limits: tuple[float, ...] = ()
    falling: bool = False
    stacked: bool = False
    least: float | None = 0
    most: float | None = None
    reach: float | None = None


class Text(NamedTuple):
    """A panel that is read."""

    title: str
    markdown: str
    width: int = COLUMNS
    height: int = 10


class Row(NamedTuple):
    """A title over the panels that follow it."""

    title: str


class Variable(NamedTuple):
    """Chosen at the top of a dashboard, from the values that a label has."""

    name: str
    query: str
    text: str
    many: bool = False


class Board(NamedTuple):
    """A dashboard."""

    name: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    content: tuple[Row | Panel | Text, ...]

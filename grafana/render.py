"""From a dashboard to the JSON that Grafana reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from grafana.panels import COLUMNS, Board, Panel, Query, Row, Text, Variable

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "prometheus"}
RUNBOOK = "sluice-runbook"
SCHEMA_VERSION = 41
BARS = {
    "orientation": "horizontal",
    "displayMode": "basic",
    "namePlacement": "left",
    "sizing": "manual",
    "minVizHeight": 16,
    "maxVizHeight": 32,
    "text": {"titleSize": 12, "valueSize": 18},
}
"""Bars as high as a line of text, however few there are."""
BOUND = {"mode": "fixed", "fixedColor": "text"}


def to_json(board: Board, anchors: dict[str, int]) -> Json:
    """The dashboard as Grafana reads it; `anchors` has the panel of each title of the runbook.

    Raises KeyError for a panel that names no such title.
    """
    return {
        "uid": f"sluice-{board.name}",
        "title": board.title,
        "description": board.text,
        "tags": ["sluice"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [_link("dashboards", "Sluice", tags=("sluice",))],
        "templating": {"list": [_variable(v) for v in board.variables]},
        "annotations": {"list": []},
        "panels": list(_placed(board.content, anchors)),
    }


def _placed(content: Sequence[Row | Panel | Text], anchors: dict[str, int]) -> Iterator[Json]:
    """Left to right, and on to the next line where it is full; ids count from 1."""
    x = y = line = 0
    for number, one in enumerate(content, 1):
        width, height = (COLUMNS, 1) if isinstance(one, Row) else (one.width, one.height)
        if x + width > COLUMNS:
            x, y, line = 0, y + line, 0
        place = {"x": x, "y": y, "w": width, "h": height}
        yield {"id": number, "gridPos": place, **_content(one, anchors)}
        x, line = x + width, max(line, height)


def _content(one: Row | Panel | Text, anchors: dict[str, int]) -> Json:
    match one:
        case Row():
            return {"type": "row", "title": one.title, "collapsed": False, "panels": []}
        case Text():
            options = {"mode": "markdown", "content": one.markdown}
            return {"type": "text", "title": one.title, "options": options}
    return _panel(one, anchors)


def _panel(panel: Panel, anchors: dict[str, int]) -> Json:
    link = f"/d/{RUNBOOK}?viewPanel={anchors[panel.see]}"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": f"{panel.text}\n\n[Runbook: {panel.see}]({link})",
        "links": [_link("link", f"Runbook: {panel.see}", url=link)],
        "datasource": SOURCE,
        "targets": [_target(panel, query, n) for n, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }


def _target(panel: Panel, query: Query, number: int) -> Json:
    is_instant = panel.kind in ("stat", "bargauge")
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": "heatmap" if panel.kind == "heatmap" else "time_series",
        "range": not is_instant,
        "instant": is_instant,
    }


def _defaults(panel: Panel) -> Json:
    shown: Json = {"unit": panel.unit, "thresholds": _thresholds(panel)}
    if panel.unit == "sci" and panel.kind == "stat":
        shown["decimals"] = 1
    if panel.kind in ("stat", "bargauge"):
        shown |= {"color": {"mode": "thresholds"}, "noValue": "none"}
    if panel.kind == "timeseries":
        shown |= {"color": {"mode": "palette-classic"}, "custom": _lines(panel)}
    bounds = {"min": panel.least, "max": panel.most}
    return shown | {name: bound for name, bound in bounds.items() if bound is not None}


def _overrides(panel: Panel) -> list[Json]:
    """A bound is a line of its own: dashed, nothing below it, and never stacked."""
    drawn = {
        "color": BOUND,
        "custom.lineStyle": {"fill": "dash", "dash": [8, 8]},
        "custom.fillOpacity": 0,
        "custom.lineWidth": 1,
        "custom.stacking": {"mode": "none"},
    }
    return [
        {
            "matcher": {"id": "byName", "options": query.legend},
            "properties": [{"id": name, "value": value} for name, value in drawn.items()],
        }
        for query in panel.queries
        if query.bound
    ]


def _thresholds(panel: Panel) -> Json:
    colors = ["green", "orange", "red"] if panel.limits else ["blue"]
    if len(panel.limits) == 1:
        colors = ["green", "red"]
    if panel.falling:
        colors = colors[::-1]
    values = [None, *sorted(panel.limits)]
    steps = [{"color": color, "value": v} for color, v in zip(colors, values, strict=True)]
    return {"mode": "absolute", "steps": steps}


def _lines(panel: Panel) -> Json:
    reach = {} if panel.reach is None else {"axisSoftMax": panel.reach}
    return reach | {
        "lineWidth": 1 if panel.stacked else 2,
        "fillOpacity": 60 if panel.stacked else 8,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
        "showPoints": "never",
        "spanNulls": 60_000,
        "thresholdsStyle": {"mode": "dashed" if panel.limits else "off"},
    }


def _options(panel: Panel) -> Json:
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case "stat":
            shown = {"colorMode": "background", "graphMode": "none", "textMode": "value_and_name"}
            return {"reduceOptions": reduced} | shown
        case "bargauge":
            return {"reduceOptions": reduced} | BARS
        case "heatmap":
            return {
                "calculate": False,
                "yAxis": {"unit": panel.unit},
                "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
            }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _variable(variable: Variable) -> Json:
    every = {"includeAll": True, "allValue": ".*", "multi": True} if variable.many else {}
    chosen = {"current": {"text": ["All"], "value": ["$__all"]}} if variable.many else {}
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.name,
        "description": variable.text,
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        **every,
        **chosen,
    }


def _link(
    kind: Literal["link", "dashboards"], title: str, *, url: str = "", tags: Sequence[str] = ()
) -> Json:
    """To one place, or to every dashboard that has the tags."""
    return {
        "type": kind,
        "title": title,
        "url": url,
        "tags": [*tags],
        "asDropdown": False,
        "includeVars": kind == "dashboards",
        "keepTime": kind == "dashboards",
        "targetBlank": kind == "link",
        "icon": "external link",
        "tooltip": "",
    }

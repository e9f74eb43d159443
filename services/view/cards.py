"""The cards of report.html that are pictures, or sentences; those that are tables: `tables.py`.

A card that has nothing to show is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

from services.view.plots import Line, Part, bar, chart, legend
from services.view.report import Report
from services.view.tables import bars, remark
from services.view.words import percent

ACTIVE = {"busy": "blue", "other": "pale"}
IDLE = ("orange", "gold", "pink", "violet", "teal")
"""Colours of what a side was idle for."""
SHADOWS = ("violet", "pink", "gold")
LEAST_SHARE = 0.005
WIDE = (960, 280)


class Axis(NamedTuple):
    """What stands to the right: a column of the series, in units of which the label is the name."""

    column: str
    label: str
    unit: float = 1.0


STEPS = Axis("step", "step")
CLOCKS = ((7200.0, Axis("seconds", "hours", 3600.0)), (600.0, Axis("seconds", "minutes", 60.0)))
"""From so many seconds on the unit is a larger one."""


def now(report: Report) -> str:
    """What there is to say of a run that is not over."""
    told = [escape(sentence) for sentence in report.now]
    told += [f'<span class="soft">{escape(sentence)}</span>' for sentence in report.advice]
    return f"<ul>{''.join(f'<li>{one}</li>' for one in told)}</ul>" if told else ""


def reward(report: Report) -> str:
    """Training reward, and the held-out points over it."""
    axis = _clock(report)
    lines = [Line("training reward", "blue", _column(report, "reward", axis))]
    for name, colour in (("sampled", "orange"), ("greedy", "teal")):
        points = [p for p in report.evaluation if getattr(p, name) is not None]
        if points:
            places = [(getattr(p, axis.column) / axis.unit, getattr(p, name)) for p in points]
            errors = [p.sampled_error or 0.0 for p in points] if name == "sampled" else None
            lines.append(Line(f"held-out, {name}", colour, places, dots=True, errors=errors))
    return chart(lines, x_label=axis.label, top=1.0 if _accuracy(lines) else None, size=WIDE)


def shadows(report: Report) -> str:
    """What scorers gave that only watch."""
    columns = zip(report.series.shadow.items(), cycle(SHADOWS), strict=False)
    lines = [
        Line(name, colour, _points(report, column, STEPS)) for (name, column), colour in columns
    ]
    return chart(lines, x_label="step") if lines else ""


def lag(report: Report) -> str:
    """Mean and oldest by step, with the limit."""
    lines = [
        Line("mean", "blue", _column(report, "lag_mean", STEPS)),
        Line("oldest", "orange", _column(report, "lag_max", STEPS)),
    ]
    limit = report.lag_limit
    return chart(lines, x_label="step", limit=None if limit is None else ("lag.max", float(limit)))


def lags(report: Report) -> str:
    """How many tokens had which lag."""
    whole = sum(report.lag_tokens.values())
    if not whole:
        return ""
    names = {f"lag {lag}": tokens for lag, tokens in report.lag_tokens.items()}
    told = {name: f"{tokens / whole:.1%}" for name, tokens in names.items()}
    note = "In optimizer steps, from the weights that sampled a token to those that it updated."
    return bars(names, "blue", told) + remark(note)


def throughput(report: Report) -> str:
    """Tokens a second of both sides, from step to step."""
    axis = _clock(report)
    lines = [
        Line("generated", "teal", _column(report, "generated_per_second", axis)),
        Line("trained", "blue", _column(report, "tokens_per_second", axis)),
    ]
    return chart([line for line in lines if line.points], x_label=axis.label)


def mismatch(report: Report) -> str:
    """How far the two sides' log-probs of the same tokens are apart."""
    points = [(x, 1000 * y) for x, y in _column(report, "mismatch_k3", STEPS)]
    if not (drawn := chart([Line("k3, in millinats", "violet", points)], x_label="step")):
        return ""
    ess = f"; effective sample size {percent(report.ess)} of the tokens" if report.ess else ""
    told = "Mean of r - 1 - log r over the tokens of a step, r = trainer / engine"
    return drawn + remark(f"{told}{ess}.{_causes(report)}")


def _causes(report: Report) -> str:
    """Of the mismatch, and what the canary says of the first."""
    causes = {"the engines": report.engine_k3, "the policy's drift": report.drift_k3}
    known = [f"{1000 * k3:.2g} {name}" for name, k3 in causes.items() if k3 is not None]
    told = f" By its causes: {', '.join(known)}." if known else ""
    gap = report.canary_gap_nats
    return told if gap is None else f"{told} The canary's gap is {gap:.1g} nats."


def _clock(report: Report) -> Axis:
    """Time, in a unit that suits the run; steps where nobody wrote the time down."""
    last = max([*report.series.seconds, *(p.seconds for p in report.evaluation)], default=0.0)
    if not last and report.series.step:
        return STEPS
    return next((axis for least, axis in CLOCKS if last >= least), Axis("seconds", "seconds"))


def _column(report: Report, name: str, axis: Axis) -> list[tuple[float, float]]:
    return _points(report, getattr(report.series, name), axis)


def _points(report: Report, ys: Sequence[float | None], axis: Axis) -> list[tuple[float, float]]:
    xs = getattr(report.series, axis.column)
    # Not strict: a report that an older release wrote lacks whole columns.
    return [(x / axis.unit, y) for x, y in zip(xs, ys, strict=False) if y is not None]


def _accuracy(lines: list[Line]) -> bool:
    return all(0.0 <= y <= 1.0 for line in lines for _, y in line.points)


def shares(report: Report) -> str:
    """Busy, idle by what it waited for, and other, as bars."""
    sides = {s: _spent(report, s) for s, share in report.busy_share.items() if share is not None}
    names = list(dict.fromkeys(name for spent in sides.values() for name in spent))
    causes = [name for name in names if name not in ACTIVE]
    colours = {**ACTIVE, **dict(zip(causes, cycle(IDLE), strict=False))}
    rows = [
        f'<div class="row"><span>{escape(side)}</span>'
        f"{bar([Part(name, colours[name], part) for name, part in spent.items()], whole=1.0)}</div>"
        for side, spent in sides.items()
    ]
    told = "; ".join(
        f"{side} {percent(report.busy_share[side])} busy, {percent(report.idle_share[side])} idle"
        for side in sides
    )
    keys = legend([(name, colours[name]) for name in ("busy", *causes, "other")])
    return "".join(rows) + keys + remark(f"{told}.") if rows else ""


def _spent(report: Report, side: str) -> dict[str, float]:
    """Shares by name; of what it was idle for only what can be seen on a bar."""
    idle, seconds = report.idle_share[side] or 0.0, report.idle_seconds.get(side, {})
    whole = sum(seconds.values())
    causes = {
        f"idle for {cause}": idle * spent / whole for cause, spent in seconds.items() if whole
    }
    seen = {name: share for name, share in causes.items() if share >= LEAST_SHARE}
    return {
        "busy": report.busy_share[side] or 0.0,
        **(seen if causes else {"idle": idle}),
        "other": report.other_share[side] or 0.0,
    }


def pauses(report: Report) -> str:
    """A flip beside a decode step, and beside chance."""
    rows = {
        "one decode step": report.decode_step_seconds,
        "pause at a flip": report.swap_pause_seconds,
        "the same without a flip (chance)": report.random_pause_seconds,
    }
    if report.decode_step_seconds is None:
        return ""
    told = {name: _milliseconds(value) for name, value in rows.items()}
    note = "A pause is the median gap between two tokens across a flip, less that without one."
    return bars({name: value or 0.0 for name, value in rows.items()}, "blue", told) + remark(note)


def _milliseconds(value: float | None) -> str:
    return "—" if value is None else f"{value * 1000:.2f} ms"

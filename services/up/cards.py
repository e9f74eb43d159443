"""What stands on the cards of report.html: pictures, tables and sentences, one function each."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from services.up.plots import Line, Part, bar, chart, legend
from services.up.report import Point, Report
from services.up.words import percent

FATES = {
    "trained": "blue",
    "zero_signal": "pale",
    "stale": "orange",
    "failed": "red",
    "scorer_error": "pink",
    "superseded": "violet",
    "late": "gold",
    "cut": "teal",
    "cancelled": "grey",
}
OTHER_FATE = "grey"
ACTIVITIES = (("busy", "blue"), ("idle", "orange"), ("other", "pale"))
WIDE = (960, 280)


def reward(report: Report) -> str:
    """Training reward, and the held-out points over it."""
    lines = [Line("training reward", "blue", _column(report, "reward"))]
    for name, colour in (("sampled", "orange"), ("greedy", "teal")):
        points = [p for p in report.evaluation if getattr(p, name) is not None]
        if points:
            places = [(p.seconds, getattr(p, name)) for p in points]
            errors = [p.sampled_error or 0.0 for p in points] if name == "sampled" else None
            lines.append(Line(f"held-out, {name}", colour, places, dots=True, errors=errors))
    return chart(lines, x_label="seconds", top=1.0 if _accuracy(lines) else None, size=WIDE)


def _accuracy(lines: list[Line]) -> bool:
    return all(0.0 <= y <= 1.0 for line in lines for _, y in line.points)


def lag(report: Report) -> str:
    """Mean and oldest, with the limit."""
    lines = [
        Line("mean", "blue", _column(report, "lag_mean", x="step")),
        Line("oldest", "orange", _column(report, "lag_max", x="step")),
    ]
    return chart(lines, x_label="step", limit=("lag.max", float(report.config["lag"]["max"])))


def throughput(report: Report) -> str:
    """Tokens trained a second."""
    line = Line("tokens/s", "blue", _column(report, "tokens_per_second"))
    return chart([line], x_label="seconds")


def _column(report: Report, name: str, x: str = "seconds") -> list[tuple[float, float]]:
    xs, ys = getattr(report.series, x), getattr(report.series, name)
    return [(at, y) for at, y in zip(xs, ys, strict=True) if y is not None]


def shares(report: Report) -> str:
    """Busy, idle and other, as bars."""
    rows = []
    for service in report.busy_share:
        parts = [
            Part(name, colour, getattr(report, f"{name}_share")[service] or 0.0)
            for name, colour in ACTIVITIES
        ]
        rows.append(f'<div class="row"><span>{service}</span>{bar(parts, whole=1.0)}</div>')
    told = "; ".join(
        f"{service} {percent(report.busy_share[service])} busy, {percent(idle)} idle"
        for service, idle in report.idle_share.items()
    )
    keys = legend([(name, colour) for name, colour in ACTIVITIES])
    return f'{"".join(rows)}{keys}<p class="note">{told}.</p>'


def pauses(report: Report) -> str:
    """A flip beside a decode step, and beside chance."""
    step = report.decode_step_seconds
    rows = [
        ("one decode step", step),
        ("pause at a flip", report.swap_pause_seconds),
        ("the same without a flip (chance)", report.random_pause_seconds),
    ]
    longest = max((abs(v) for _, v in rows if v is not None), default=0.0)
    body = "".join(
        f'<tr><td>{name}</td><td class="half">{_measure(value, longest)}</td>'
        f'<td class="n">{_milliseconds(value)}</td></tr>'
        for name, value in rows
    )
    told = "A pause is the median gap between two tokens across a flip, less that without one."
    return f'<table>{body}</table><p class="note">{told}</p>'


def _measure(value: float | None, whole: float) -> str:
    return bar([Part("", "blue", max(0.0, value or 0.0))], whole=whole, height=10)


def _milliseconds(value: float | None) -> str:
    return "—" if value is None else f"{value * 1000:.2f} ms"


def ledger(report: Report) -> str:
    """One bar of fates, and their sums."""
    whole = report.ledger["generated"].tokens if "generated" in report.ledger else 0
    fates = [(fate, s) for fate, s in report.ledger.items() if fate != "generated"]
    fates.sort(key=lambda item: (item[0] != "trained", -item[1].tokens))
    parts = [Part(fate, FATES.get(fate, OTHER_FATE), s.tokens) for fate, s in fates]
    rows = "".join(
        f'<tr><td><i class="swatch {FATES.get(fate, OTHER_FATE)}"></i>{escape(fate)}</td>'
        f'<td class="n">{s.members:,}</td><td class="n">{s.tokens:,}</td>'
        f'<td class="n">{percent(s.tokens / whole if whole else None)}</td></tr>'
        for fate, s in fates
    )
    verdict = '<b class="yes">Balanced</b>' if report.balanced else '<b class="no">Off balance</b>'
    generated = f"{whole:,} tokens generated, {report.in_flight_tokens:,} without a fate yet"
    head = (
        '<th>fate</th><th class="n">members</th><th class="n">tokens</th><th class="n">share</th>'
    )
    return (
        f'{bar(parts, whole=whole, width=960)}<p class="note">{verdict}: {generated}.</p>'
        f"<table><tr>{head}</tr>{rows}</table>"
    )


def refused(report: Report) -> str:
    """Members that were not trained, by reason."""
    if not report.members_refused:
        return '<p class="note">None was refused.</p>'
    most = max(report.members_refused.values())
    return _counts({k: (v, v / most) for k, v in report.members_refused.items()}, "orange")


def restarts(report: Report) -> str:
    """Who died and was started again."""
    if not report.restarts:
        return '<p class="note">None died.</p>'
    most = max(report.restarts.values())
    return _counts({k: (v, v / most) for k, v in report.restarts.items()}, "red")


def _counts(rows: dict[str, tuple[int, float]], colour: str) -> str:
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        f'<td class="half">{bar([Part(name, colour, part)], whole=1.0, height=10)}</td>'
        f'<td class="n">{count:,}</td></tr>'
        for name, (count, part) in rows.items()
    )
    return f"<table>{body}</table>"


def evaluation(report: Report) -> str:
    """The held-out points as a table."""
    head = "".join(
        f'<th class="n">{name}</th>' for name in ("version", "step", "seconds", "sampled", "greedy")
    )
    rows = "".join(
        f'<tr><td class="n">{p.version}</td><td class="n">{p.step}</td>'
        f'<td class="n">{p.seconds:.1f}</td><td class="n">{_sampled(p)}</td>'
        f'<td class="n">{percent(p.greedy)}</td></tr>'
        for p in report.evaluation
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _sampled(point: Point) -> str:
    error = "" if point.sampled_error is None else f" ± {point.sampled_error:.1%}"
    return percent(point.sampled) + error


def folded(title: str, rows: dict[str, str]) -> str:
    """A table that can be put away."""
    body = "".join(
        f"<tr><td><code>{escape(key)}</code></td>"
        f'<td class="long"><code>{escape(value)}</code></td></tr>'
        for key, value in rows.items()
    )
    return f"<details open><summary>{title}</summary><table>{body}</table></details>"


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A tree of settings as section.key and value."""
    for key, value in tree.items():
        if isinstance(value, dict) and "use" not in value:
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", _told(value)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_told(v)}" for key, v in value.items())
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    return str(value)

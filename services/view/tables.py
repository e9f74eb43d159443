"""The cards of report.html that are tables, and what tables are made of.

A card that has nothing to show is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from pipeline.watch.gaming import ATTEMPTS, BELOW_BEST, DIVERGENCE, LENGTH, PROMPTS, REPEATED
from services.view.plots import Part, bar
from services.view.report import Least, Point, Report
from services.view.words import percent

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
REPEATS = {
    ATTEMPTS: "attempts at a prompt that only repeat another",
    BELOW_BEST: "those of them that are not right",
    PROMPTS: "answers that are the same to different prompts",
}


def ledger(report: Report) -> str:
    """One bar of fates, and their sums."""
    if report.balanced is None:
        return remark("The ledger is the server's, and no server could be reached.")
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
    heads = _heads(("fate", ""), ("members", "n"), ("tokens", "n"), ("share", "n"))
    return (
        f'{bar(parts, whole=whole, width=960)}<p class="note">{verdict}: {generated}.</p>'
        f"<table>{heads}{rows}</table>"
    )


def refused(report: Report) -> str:
    """Members that were not trained, by reason."""
    counts = report.members_refused
    return bars(counts, "orange", _counted(counts)) if counts else remark("None was refused.")


def least(report: Report) -> str:
    """Who is trained least often, by task and by length; empty where too little was counted."""
    shares = {_kind(one): one.share for one in report.least_shares}
    if not shares:
        return ""
    told = {kind: percent(share) for kind, share in shares.items()}
    note = "Share of the members trained over share of those sampled; 100% is fair."
    return bars(shares, "orange", told, whole=1.0) + remark(note)


def _kind(one: Least) -> str:
    bound = one.by == "length" and one.name.isdigit()
    return f"length up to {int(one.name):,}" if bound else f"{one.by} {one.name}"


def gaming(report: Report) -> str:
    """What the last steps show, beside what would be too much; empty where nothing is known."""
    signs = report.gaming
    rows: list[tuple[str, float | None, str]] = [
        ("correlation of reward and length, within groups", signs.length, f"±{LENGTH}"),
        *((text, signs.repeated.get(a), _limit(REPEATED.get(a))) for a, text in REPEATS.items()),
    ]
    for name, sigmas in signs.divergence.items():
        told = f"reward up, shadow {name} down, in standard errors"
        rows.append((told, sigmas, f"{DIVERGENCE:g}"))
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{value:.2f}</td><td class="n">{limit}</td></tr>'
        for name, value, limit in rows
        if value is not None
    )
    heads = _heads(("over the last steps", ""), ("found", "n"), ("told beyond", "n"))
    said = "".join(map(remark, report.suspicions))
    return f"<table>{heads}{body}</table>{said}" if body else ""


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def restarts(report: Report) -> str:
    """Who was started again, mostly for having died; empty where that is not known."""
    if report.restarts is None:
        return ""
    counts = report.restarts
    return bars(counts, "red", _counted(counts)) if counts else remark("None was.")


def evaluation(report: Report) -> str:
    """The held-out points as a table."""
    if not report.evaluation:
        return ""
    ks = sorted({k for point in report.evaluation for k in point.pass_at} - {1})
    names = ("version", "step", "seconds", "sampled", "greedy", *(f"pass@{k}" for k in ks))
    rows = "".join(
        f'<tr><td class="n">{p.version}</td><td class="n">{p.step}</td>'
        f'<td class="n">{p.seconds:.1f}</td><td class="n">{_sampled(p)}</td>'
        f'<td class="n">{percent(p.greedy)}</td>'
        + "".join(f'<td class="n">{percent(p.pass_at.get(k))}</td>' for k in ks)
        + "</tr>"
        for p in report.evaluation
    )
    return f"<table>{_heads(*((name, 'n') for name in names))}{rows}</table>"


def configuration(report: Report) -> str:
    """The run's own keys first, then every section."""
    tree = report.config
    own = {key: value for key, value in tree.items() if not _is_section(value)}
    named = {key: value for key, value in tree.items() if _is_section(value)}
    body = keys("run", own) + "".join(keys(name, section) for name, section in named.items())
    return f'<div class="columns">{body}</div>' if body else ""


def keys(title: str, rows: Mapping[str, Any]) -> str:
    """Keys and values; those without a value are left out."""
    body = "".join(
        f"<tr><td><code>{escape(key)}</code></td><td><code>{escape(_told(value))}</code></td></tr>"
        for key, value in rows.items()
        if value not in (None, "")
    )
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="keys">{head}<table>{body}</table></div>' if body else ""


def _is_section(value: Any) -> bool:
    """A table of keys, and no plug-in with its options."""
    return isinstance(value, dict) and "use" not in value


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_told(v)}" for key, v in value.items())
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    return str(value)


def _sampled(point: Point) -> str:
    error = "" if point.sampled_error is None else f" ± {point.sampled_error:.1%}"
    return percent(point.sampled) + error


def _counted(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{count:,}" for name, count in counts.items()}


def bars(
    values: Mapping[str, float], colour: str, told: Mapping[str, str], whole: float = 0.0
) -> str:
    """A line each: the name, a bar beside the longest or the whole, and the number in words."""
    most = whole or max(map(abs, values.values()), default=0.0)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        f'<td class="half">{bar([Part(name, colour, value)], whole=most, height=10)}</td>'
        f'<td class="n">{escape(told[name])}</td></tr>'
        for name, value in values.items()
    )
    return f"<table>{rows}</table>"


def _heads(*names: tuple[str, str]) -> str:
    cells = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in names)
    return f"<tr>{cells}</tr>"


def remark(text: str) -> str:
    """A remark below what it is about."""
    return f'<p class="note">{escape(text)}</p>'

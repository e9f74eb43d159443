"""report.html from report.json alone: one file, no script, nothing fetched, light and dark.

Numbers are only put into words and pictures here; they are made in `build.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template

from pipeline.watch.finding import plural
from services.view import cards, tables
from services.view.headline import headline
from services.view.report import Report, read
from services.view.words import NO_BREAK, duration, figure, percent

TEMPLATE = Path(__file__).with_name("report.html")
NO_STEPS = '<p class="note">No steps yet.</p>'


def draw(folder: Path) -> Path:
    """Writes report.html from the report.json beside it."""
    path = folder / "report.html"
    path.write_text(render(read(folder)), encoding="utf-8")
    return path


def render(report: Report) -> str:
    """The whole page."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{report.name}: {report.outcome}"),
        eyebrow=_eyebrow(report),
        headline=escape(headline(report)),
        facts=escape(_facts(report)),
        tiles="".join(_tiles(report)),
        cards="\n".join(_cards(report)),
        footer=escape(f"Made {report.made} by sluice {version('sluice-rl')}."),
    )


def _eyebrow(report: Report) -> str:
    state = f'<span class="state {report.outcome}">{report.outcome}</span>'
    parts = [f"Sluice run {escape(report.name)}", escape(report.started), state]
    return " · ".join(part for part in parts if part)


def _facts(report: Report) -> str:
    parts = []
    if config := report.config:
        groups = config["groups"]
        parts += [config["model"]["path"]]
        parts += [f"{plural(groups['per_step'], 'group')} of {groups['members']} a step"]
    if report.lag_limit is not None:
        parts.append(f"at most {plural(report.lag_limit, 'step')} of lag")
    return "; ".join(parts) + "." if parts else ""


def _tiles(report: Report) -> Iterator[str]:
    of = "" if report.target_steps is None else f" of {report.target_steps:,}"
    tiles = {
        "optimizer steps": f"{report.steps:,}{of}",
        "in the trainer's loop": duration(report.seconds).replace(NO_BREAK, " "),
        "tokens/s generated": figure(report.tokens_per_second["generated"]),
        "tokens/s trained": figure(report.tokens_per_second["trained"]),
        "of members span versions": percent(report.share_of_members_spanning_versions),
        "flips to new weights": figure(report.flips),
    }
    for text, value in tiles.items():
        yield f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _cards(report: Report) -> Iterator[str]:
    yield from _wide("What goes on", cards.now(report))
    yield from _wide("Reward over time", cards.reward(report) or NO_STEPS)
    yield from _half("Lag of the tokens trained", cards.lags(report))
    yield from _half("Lag by step", cards.lag(report))
    yield from _half("Tokens a second", cards.throughput(report))
    yield from _half("Where the seconds went", cards.shares(report))
    yield from _half("The gap between engine and trainer", cards.mismatch(report))
    yield from _half("What a flip costs", cards.pauses(report))
    yield from _half("Members refused, by reason", tables.refused(report))
    yield from _half("Who is trained least", tables.least(report))
    yield from _half("Is the reward being gamed?", tables.gaming(report))
    yield from _half("Rewards of the shadows", cards.shadows(report))
    yield from _half("Processes started again", tables.restarts(report))
    yield from _wide("The ledger: how every token ended", tables.ledger(report))
    yield from _wide("Held-out prompts, by version", tables.evaluation(report))
    yield from _wide("Configuration", tables.configuration(report))
    yield from _wide("Where this report was made", tables.keys("", report.machine))


def _wide(title: str, body: str) -> Iterator[str]:
    return _card(title, body, "card wide")


def _half(title: str, body: str) -> Iterator[str]:
    return _card(title, body, "card")


def _card(title: str, body: str, kind: str) -> Iterator[str]:
    """What is empty is no card: the next takes its place."""
    if body:
        yield f'<article class="{kind}"><h2>{escape(title)}</h2>{body}</article>'

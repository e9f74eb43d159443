"""report.html from report.json alone: one file, no script, nothing fetched, light and dark.

Numbers are only put into words and pictures here; they are made in `report.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template

import msgspec

from services.up import cards
from services.up.report import Report
from services.up.words import duration, figure, headline, percent, plural

TEMPLATE = Path(__file__).with_name("report.html")


def draw(folder: Path) -> Path:
    """Writes report.html from the report.json beside it."""
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    path = folder / "report.html"
    path.write_text(render(report), encoding="utf-8")
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
    )


def _eyebrow(report: Report) -> str:
    state = f'<span class="state {report.outcome}">{report.outcome}</span>'
    return f"Sluice run {escape(report.name)} · {escape(report.started)} · {state}"


def _facts(report: Report) -> str:
    model = report.config["model"]["path"]
    groups = report.config["groups"]
    machine = report.machine
    parts = [
        f"{model}, {groups['per_step']} groups of {groups['members']} a step",
        f"at most {plural(report.config['lag']['max'], 'step')} of lag",
        f"{plural(int(machine.get('cores', '0')), 'core')} ({machine.get('processor', '?')})",
    ]
    return "; ".join(parts) + "."


def _tiles(report: Report) -> Iterator[str]:
    tiles = {
        "optimizer steps": f"{report.steps} of {report.target_steps}",
        "in the trainer's loop": duration(report.seconds),
        "tokens/s generated": figure(report.tokens_per_second["generated"]),
        "tokens/s trained": figure(report.tokens_per_second["trained"]),
        "of members span versions": percent(report.share_of_members_spanning_versions),
        "flips while sampling": f"{report.flips:,}",
    }
    for text, value in tiles.items():
        yield f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def _cards(report: Report) -> Iterator[str]:
    yield _card("Reward over time", cards.reward(report), wide=True)
    yield _card("Lag of the tokens trained, in optimizer steps", cards.lag(report))
    yield _card("Tokens trained a second", cards.throughput(report))
    yield _card("Where the seconds went", cards.shares(report))
    yield _card("What a flip costs", cards.pauses(report))
    yield _card("The ledger: how every token ended", cards.ledger(report), wide=True)
    yield _card("Members refused, by reason", cards.refused(report))
    yield _card("Processes started again", cards.restarts(report))
    if report.evaluation:
        yield _card("Held-out prompts, by version", cards.evaluation(report), wide=True)
    yield _card("", cards.folded("Configuration", dict(cards.flat(report.config))), wide=True)
    yield _card("", cards.folded("Machine", report.machine), wide=True)


def _card(title: str, body: str, *, wide: bool = False) -> str:
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    empty = '<p class="note">No steps yet.</p>'
    return f'<article class="card{" wide" if wide else ""}">{heading}{body or empty}</article>'

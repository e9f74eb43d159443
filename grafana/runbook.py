"""docs/runbook.md as a dashboard: a panel for each section, so that others can link to it."""

from __future__ import annotations

from pathlib import Path

from grafana.panels import Board, Text
from grafana.render import RUNBOOK

PAGE = Path(__file__).resolve().parent.parent / "docs" / "runbook.md"


def sections() -> dict[str, str]:
    """The text of the page by its headings, in order; what stands before the first is left out."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    pairs = (part.partition("\n") for part in parts)
    return {title.strip(): text.strip() for title, _, text in pairs}


def anchors() -> dict[str, int]:
    """The number of the panel of each section."""
    return {title: number for number, title in enumerate(sections(), 1)}


def board() -> Board:
    """The page, section by section."""
    return Board(
        name=RUNBOOK.removeprefix("sluice-"),
        title="Sluice: runbook",
        text="What each alert means, what to look at, and what to do.",
        variables=(),
        content=tuple(Text(title, text) for title, text in sections().items()),
    )

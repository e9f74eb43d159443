"""docs/runbook.md as a dashboard: a panel for each section, so that others can link to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from grafana.panels import Board, Text
from grafana.render import RUNBOOK

WIDTH = 12
LINE = 105
"""So many letters of a text go into a line of a panel of that width, on a screen of 1600 dots."""
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
        content=tuple(_side_by_side()),
    )


def _side_by_side() -> Iterator[Text]:
    """Two sections in a row, both as high as the longer one."""
    pairs = list(sections().items())
    for first in range(0, len(pairs), 2):
        row = pairs[first : first + 2]
        height = max(_height(text) for _, text in row)
        yield from (Text(title, text, width=WIDTH, height=height) for title, text in row)


def _height(text: str) -> int:
    """Cells of the grid, of 38 dots each: a line has 22, a gap between blocks 12, the frame 55."""
    blocks = [block for block in text.replace("\n- ", "\n\n- ").split("\n\n") if block]
    lines = sum(math.ceil(len(block) / LINE) for block in blocks)
    return math.ceil((55 + 22 * lines + 12 * len(blocks)) / 38)

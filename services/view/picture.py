"""A scene as one picture for a terminal, of whatever size that is: pure, nothing is asked or kept.

What a terminal has no room for is left out line by line, and said so; no line is wider than it.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from pipeline.watch.finding import plural
from services.view.charts import charts
from services.view.numbers import notes, numbers, progress
from services.view.outcome import standing
from services.view.processes import lines_of, table
from services.view.scene import Scene

FRAME_WIDTH, FRAME_HEIGHT = 4, 2
LEAST_CHART, PLAIN_CHART, MOST_CHART = 3, 6, 12
"""Rows of a picture: what it needs, what it gets where there is no end, and what it takes."""
SENTENCES, BLANKS = 4, 4
CHART_WIDTH = 56
"""Below it there is no room for two pictures side by side."""
STYLES = {
    "starting": "dim",
    "running": "green",
    "done": "blue",
    "failed": "bold red",
    "stopped": "yellow",
}


def render(scene: Scene, width: int, height: int | None = None) -> RenderableType:
    """The whole picture, no higher than that; without a height as high as it needs."""
    inner = max(1, width - FRAME_WIDTH)
    room = None if height is None else max(1, height - FRAME_HEIGHT)
    lines = compose(scene, inner, room)
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return Panel(
        Group(*lines),
        title=_title(scene),
        title_align="left",
        subtitle=_subtitle(scene),
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="blue",
        padding=(0, 1),
        width=width,
    )


def compose(scene: Scene, width: int, room: int | None = None) -> list[Text]:
    """The lines inside the frame: how far, how well, how fast, who does what, and why."""
    snapshot = scene.snapshot
    head, body = [progress(scene, width)], numbers(scene, width)
    told = _bullets(scene, width)
    share = _share(scene, width, room, len(head) + len(body), sum(map(len, told)))
    parts = [
        head,
        charts(snapshot, width, share.chart) if share.chart else [],
        body,
        table(snapshot.beats, scene.rates, width=width, most=share.people)[: share.people],
        _fitting(told, share.told),
    ]
    return _stacked([part for part in parts if part], share.blanks)[:room]


class Share(NamedTuple):
    """How many lines each part may have; `blanks` are between the parts."""

    chart: int
    people: int
    told: int
    blanks: int


class Room:
    """Lines that are not given away yet; without an end there is room for everything."""

    def __init__(self, lines: int | None) -> None:
        self._left = sys.maxsize if lines is None else max(0, lines)

    def upto(self, lines: int) -> int:
        """So many of these lines as there are."""
        given = min(lines, self._left)
        self._left -= given
        return given

    def whole(self, lines: int) -> int:
        """All of these lines, or none."""
        return self.upto(lines) if lines <= self._left else 0


def _share(scene: Scene, width: int, room: int | None, taken: int, told: int) -> Share:
    """What is told comes before pictures, and a line a service before a line a process."""
    rest = Room(None if room is None else room - taken)
    most, least = lines_of(scene.snapshot.beats)
    people = rest.upto(least)
    words = rest.upto(min(told, SENTENCES))
    chart = rest.whole(1 + LEAST_CHART) if width >= CHART_WIDTH else 0
    people += rest.whole(most - least)
    words += rest.upto(told - words)
    blanks = rest.upto(BLANKS)
    if chart:
        chart += rest.upto((PLAIN_CHART if room is None else MOST_CHART) - LEAST_CHART)
    return Share(chart - 1 if chart else 0, people, words, blanks)


def _bullets(scene: Scene, width: int) -> list[list[Text]]:
    """Each sentence in as many lines as it takes."""
    out = []
    for sentence, style in notes(scene):
        first, *more = textwrap.wrap(sentence, max(8, width - 2)) or [""]
        out.append([Text.assemble(("• ", "blue"), (first, style))])
        out[-1] += [Text(f"  {line}", style) for line in more]
    return out


def _fitting(told: Sequence[Sequence[Text]], most: int) -> list[Text]:
    """Whole sentences only; where some have no place, a line says how many."""
    lines: list[Text] = []
    for n, sentence in enumerate(told):
        last = n == len(told) - 1
        if len(lines) + len(sentence) + (not last) > most:
            left = len(told) - n
            return [*lines, Text(f"  and {plural(left, 'sentence')} more", "dim")][:most]
        lines += sentence
    return lines


def _stacked(parts: Sequence[Sequence[Text]], blanks: int) -> list[Text]:
    """One below the other, with blank lines between the last ones while there are any."""
    lines: list[Text] = []
    for left, part in zip(reversed(range(len(parts))), parts, strict=True):
        lines += part
        if left and left <= blanks:
            lines.append(Text())
    return lines


def _title(scene: Scene) -> Text:
    word = "starting" if scene.starting else standing(scene.snapshot).word
    return Text.assemble(" ", (scene.name, "bold"), "  ", (word, STYLES[word]), " ")


def _subtitle(scene: Scene) -> Text:
    told = [part for part in (scene.where, scene.hint) if part]
    return Text(f" {' · '.join(told)} " if told else "", "dim")

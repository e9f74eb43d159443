"""Curves, bars and columns of characters for a terminal: numbers in, lines of text out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

EIGHTHS = " ▁▂▃▄▅▆▇█"
FRACTIONS = "▏▎▍▌▋▊▉█"
GAP = 2
"""Blanks between two columns."""


class Column(NamedTuple):
    """How the cells under a title stand; what is `elastic` gives way where the room is short."""

    title: str
    right: bool = False
    elastic: bool = False


def sampled(points: Sequence[tuple[float, float]], width: int) -> list[float]:
    """One value for each of `width` columns, from the first x to the last.

    It is the mean of the points that fall there; without one that of the column before.
    """
    if not points or width < 1:
        return []
    if len(points) == 1:
        return [points[0][1]]
    first, last = points[0][0], points[-1][0]
    edges = [first + (last - first) * n / width for n in range(width + 1)]
    out: list[float] = []
    for left, right in pairwise(edges):
        inside = [y for x, y in points if left <= x < right or x == right == last]
        out.append(sum(inside) / len(inside) if inside else out[-1])
    return out


def curve(values: Sequence[float], height: int) -> list[str]:
    """The values as an area of so many rows, the first on top, from the least to the largest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span, levels = high - low or 1.0, height * 8 - 1
    filled = [1 + round((value - low) / span * levels) for value in values]
    return [
        "".join(EIGHTHS[min(8, max(0, level - 8 * row))] for level in filled)
        for row in reversed(range(height))
    ]


def bar(share: float, width: int) -> str:
    """A share of 1 as a bar; what is not nothing is never shown as nothing."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (FRACTIONS[rest - 1] if rest else "")


def columns(heads: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[Text]:
    """A line of titles, and one for each row, none wider than `width`."""
    titles = [Text(head.title, "dim") for head in heads]
    widths = [max(cell.cell_len for cell in column) for column in zip(titles, *rows, strict=True)]
    elastic = [n for n, head in enumerate(heads) if head.elastic]
    for _ in range(sum(widths) + GAP * (len(heads) - 1) - width):
        widest = max(elastic, key=lambda n: widths[n])
        widths[widest] = max(len(heads[widest].title), widths[widest] - 1)
    return [_line(row, heads, widths, width) for row in (titles, *rows)]


def crop(text: Text, width: int) -> Text:
    """A copy that is no wider; what was left out is told by its last character."""
    shown = text.copy()
    shown.truncate(max(0, width), overflow="ellipsis")
    return shown


def _line(
    cells: Sequence[Text], heads: Sequence[Column], widths: Sequence[int], width: int
) -> Text:
    line = Text()
    for cell, head, wide in zip(cells, heads, widths, strict=True):
        shown = crop(cell, wide)
        blanks = " " * (wide - shown.cell_len)
        line.append_text(Text(blanks) + shown if head.right else shown + Text(blanks))
        line.append(" " * GAP)
    line.rstrip()
    return crop(line, width)

"""Lines and stacked bars as inline SVG: numbers in, text out. Colours are classes, so that the
page's style decides them for light and dark; what a plot means is `page.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 34
TICKS = 5
HEADROOM = 1.1
"""Of a limit, so that its name has a place above it."""


class Line(NamedTuple):
    """One series. `colour` is a class of the page; `errors` are half-heights at each point."""

    name: str
    colour: str
    points: list[tuple[float, float]]
    dots: bool = False
    errors: list[float] | None = None


class Part(NamedTuple):
    """One piece of a stacked bar."""

    name: str
    colour: str
    value: float


class Frame(NamedTuple):
    """From the data's coordinates to those of the picture."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point in the picture."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            LEFT + across * (self.width - LEFT - RIGHT),
            self.height - BOTTOM - up * (self.height - TOP - BOTTOM),
        )


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    top: float | None = None,
    limit: tuple[str, float] | None = None,
    size: tuple[int, int] = (460, 220),
) -> str:
    """Lines over a shared x axis from 0; `limit` is a named dashed line. Empty without points."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    highest = max([y for _, y in points] + ([limit[1] * HEADROOM] if limit else []))
    y_ticks = ticks(min(0.0, *(y for _, y in points)), top if top is not None else highest)
    x_ticks = ticks(0.0, max(x for x, _ in points))
    x_end = max(max(x for x, _ in points), x_ticks[-1] if len(points) == 1 else 0.0)
    frame = Frame(*size, (0.0, x_end or 1.0), (y_ticks[0], y_ticks[-1]))
    body = [_axes(frame, [t for t in x_ticks if t <= frame.x[1]], y_ticks, x_label)]
    if limit:
        body.append(_limit(frame, *limit))
    body += [_line(frame, line) for line in lines]
    return _svg(size, "".join(body)) + legend([(line.name, line.colour) for line in lines])


def bar(parts: Sequence[Part], *, whole: float, height: int = 22, width: int = 460) -> str:
    """One horizontal bar whose pieces add up to `whole` at most; each names itself on hover."""
    pieces, x = [], 0.0
    for name, colour, value in parts:
        wide = width * value / whole if whole > 0 else 0.0
        tip = f"<title>{escape(name)}: {value / whole:.1%}</title>" if whole > 0 else ""
        pieces.append(
            f'<rect class="fill {colour}" x="{x:.1f}" y="0" '
            f'width="{max(0.0, wide - 1):.1f}" height="{height}">{tip}</rect>'
        )
        x += wide
    ground = f'<rect class="ground" x="0" y="0" width="{width}" height="{height}"/>'
    shape = f'viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
    return f'<svg class="bar" {shape} style="height:{height}px">{ground}{"".join(pieces)}</svg>'


def legend(names: Sequence[tuple[str, str]]) -> str:
    """What each colour means."""
    keys = "".join(
        f'<span class="key"><i class="swatch {colour}"></i>{escape(name)}</span>'
        for name, colour in names
    )
    return f'<div class="legend">{keys}</div>'


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers, evenly apart, that enclose low and high."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(n * step, 12) for n in range(first, last + 1)]


def short(value: float) -> str:
    """A number for an axis: 12k, 0.25, 3."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def _svg(size: tuple[int, int], body: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {size[0]} {size[1]}" role="img">{body}</svg>'


def _axes(frame: Frame, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str) -> str:
    out = []
    for y in y_ticks:
        left, height = frame.at(frame.x[0], y)
        right, _ = frame.at(frame.x[1], y)
        rule = f'x1="{left:.1f}" y1="{height:.1f}" x2="{right:.1f}" y2="{height:.1f}"'
        out.append(f'<line class="grid" {rule}/>')
        out.append(_text(left - 7, height + 3.5, short(y), "end"))
    for x in x_ticks:
        across, floor = frame.at(x, frame.y[0])
        out.append(_text(across, floor + 15, short(x), "middle"))
    out.append(_text(frame.width - RIGHT, frame.height - 4, x_label, "end"))
    return "".join(out)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _limit(frame: Frame, name: str, value: float) -> str:
    left, height = frame.at(frame.x[0], value)
    right, _ = frame.at(frame.x[1], value)
    rule = f'x1="{left:.1f}" y1="{height:.1f}" x2="{right:.1f}" y2="{height:.1f}"'
    return f'<line class="limit" {rule}/>{_text(right, height - 5, name, "end")}'


def _line(frame: Frame, line: Line) -> str:
    places = [frame.at(x, y) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    out = [f'<polyline class="stroke {line.colour}" points="{path}"/>'] if len(places) > 1 else []
    if line.errors:
        for (x, y), error in zip(line.points, line.errors, strict=True):
            out.append(_whisker(frame, line.colour, x, (y - error, y + error)))
    if line.dots or len(places) == 1:
        for (x, y), (across, height) in zip(line.points, places, strict=True):
            tip = f"<title>{escape(line.name)}: {y:.3g} at {x:.4g}</title>"
            spot = f'cx="{across:.1f}" cy="{height:.1f}" r="4"'
            out.append(f'<circle class="dot {line.colour}" {spot}>{tip}</circle>')
    return "".join(out)


def _whisker(frame: Frame, colour: str, x: float, ends: tuple[float, float]) -> str:
    low, high = (min(max(end, frame.y[0]), frame.y[1]) for end in ends)
    across, floor = frame.at(x, low)
    _, roof = frame.at(x, high)
    rule = f'x1="{across:.1f}" y1="{floor:.1f}" x2="{across:.1f}" y2="{roof:.1f}"'
    return f'<line class="stroke {colour}" {rule}/>'

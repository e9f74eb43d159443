"""The picture of a lag sweep, as SVG: held-out reward over lag, a line for each method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Table = Mapping[str, Mapping[str, tuple[float, float]]]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 60, 40, 120, 50
COLOURS = ("#57606a", "#0969da", "#8250df", "#1a7f37", "#bf3989", "#9a6700")


def draw(table: Table, lags: Sequence[int]) -> str:
    """Each point is a mean over seeds, its bar one standard error to either side."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-weight="600">Held-out reward after the sweep, '
        "by forced lag</text>",
        *_axes(lags),
    ]
    for number, (method, values) in enumerate(table.items()):
        lines += _line(method, [values[str(lag)] for lag in lags], number=number, of=len(table))
    return "\n".join([*lines, "</svg>", ""])


def _axes(lags: Sequence[int]) -> Iterator[str]:
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>'
    for place, lag in enumerate(lags):
        x, y = _x(place, len(lags)), HEIGHT - BOTTOM + 20
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{lag}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">lag, optimizer steps</text>'


def _line(
    method: str, values: Sequence[tuple[float, float]], *, number: int, of: int
) -> Iterator[str]:
    colour = COLOURS[number % len(COLOURS)]
    shift = 6 * (number - (of - 1) / 2)  # so that bars of one lag stand side by side
    points = [(_x(i, len(values)) + shift, mean, error) for i, (mean, error) in enumerate(values)]
    path = " ".join(f"{x:.1f},{_y(mean):.1f}" for x, mean, _ in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, mean, error in points:
        bar = f"M{x:.1f} {_y(mean - error):.1f}V{_y(mean + error):.1f}"
        yield f'<path d="{bar}" stroke="{colour}"/>'
        yield f'<circle cx="{x:.1f}" cy="{_y(mean):.1f}" r="3.5" fill="{colour}"/>'
    y = TOP + 18 * number + 10
    yield f'<circle cx="{WIDTH - RIGHT + 24}" cy="{y - 4}" r="4" fill="{colour}"/>'
    yield f'<text x="{WIDTH - RIGHT + 34}" y="{y}">{method}</text>'


def _x(place: int, of: int) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * (place + 0.5) / of


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(1.0, max(0.0, value))

"""The two pictures side by side: rewards over the steps, and tokens by their lag."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from pipeline.watch import Snapshot
from services.view.blocks import bar, crop, curve, sampled
from services.view.scene import gauge, lags, rewards
from services.view.words import lag_figure

BETWEEN = 4
LABEL = 6
"""Room for a number beside a picture: its place left of a curve, or right of a bar."""


def charts(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    """A line of titles and `rows` of pictures, 3 at least."""
    left = (width - BETWEEN) // 2
    right = width - BETWEEN - left
    pairs = zip(_reward(snapshot, left, rows), _lag(snapshot, right, rows), strict=True)
    return [_beside(one, other, left) for one, other in pairs]


def _beside(one: Text, other: Text, left: int) -> Text:
    line = crop(one, left)
    line.append(" " * (left + BETWEEN - line.cell_len))
    return line.append_text(other)


def _reward(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    points = rewards(snapshot)
    if not points:
        return _empty("reward", "no step yet", rows)
    first, last, shown = points[0][1], points[-1][1], gauge(snapshot, "reward")
    values = sampled(points, width - LABEL - 1)
    last = last if shown is None else shown
    values[0], values[-1] = first, last  # what the title says, and no mean
    title = Text.assemble(
        ("reward  ", "dim"),
        (f"{last:.3f}", "bold"),
        (f" from {first:.3f}", "dim"),
    )
    labels = [f"{max(values):.3g}", *[""] * (rows - 2), f"{min(values):.3g}"]
    return [
        title,
        *(
            Text.assemble((f"{label:>{LABEL}} ", "dim"), (row, "green"))
            for label, row in zip(labels, curve(values, rows), strict=True)
        ),
    ]


def _lag(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    tokens = lags(snapshot)
    mean, most = gauge(snapshot, "lag_mean_steps"), gauge(snapshot, "lag_max_steps")
    if not sum(tokens.values()):
        return _empty("lag", f"none yet, {snapshot.lag_max} at most", rows)
    title = Text.assemble(
        ("lag  ", "dim"),
        (f"mean {lag_figure(mean)}, max {lag_figure(most)}", "bold"),
        (f" of {snapshot.lag_max}", "dim"),
    )
    return [title, *_bars(_merged(tokens, rows), width, rows)]


def _bars(parts: Mapping[str, float], width: int, rows: int) -> list[Text]:
    whole, longest = sum(parts.values()), max(parts.values())
    name = max(map(len, parts))
    room = width - name - 1 - LABEL
    lines = [
        Text.assemble(
            (f"{lag:>{name}} ", "dim"),
            (bar(tokens / longest, room).ljust(room), "blue"),
            f"{tokens / whole:{LABEL}.0%}",
        )
        for lag, tokens in parts.items()
    ]
    return [*lines, *[Text()] * (rows - len(lines))]


def _merged(tokens: Mapping[str, float], rows: int) -> dict[str, float]:
    """Tokens by lag in so many bars, from 0 to the largest there is; the last may join several."""
    known = [lag for lag, count in tokens.items() if count]
    order = sorted(tokens, key=_lag_order)
    upto = order[: max(order.index(lag) for lag in known) + 1]
    if len(upto) <= rows:
        return {lag: tokens[lag] for lag in upto}
    kept, rest = upto[: rows - 1], upto[rows - 1 :]
    joined = {lag: tokens[lag] for lag in kept}
    return joined | {f"{rest[0]}+": sum(tokens[lag] for lag in rest)}


def _lag_order(lag: str) -> float:
    return float(lag) if lag.isdigit() else float("inf")


def _empty(title: str, told: str, rows: int) -> list[Text]:
    return [Text.assemble((f"{title}  ", "dim"), told), *[Text()] * rows]

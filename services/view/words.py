"""Numbers in words, as a person would say them."""

from __future__ import annotations

NO_BREAK = "\N{NO-BREAK SPACE}"


def duration(seconds: float) -> str:
    """13.4 s, 2 min 5 s, 3 h 12 min; a number is never parted from its unit."""
    return _plain_duration(seconds).replace(" ", NO_BREAK)


def _plain_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rough(seconds: float) -> str:
    """13 s, 2 min 5 s: where tenths would only flicker."""
    return f"{seconds:.0f}{NO_BREAK}s" if seconds < 59.5 else duration(seconds)


def figure(value: float | None) -> str:
    """A whole number with separators, or a dash."""
    return "—" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage, or a dash."""
    return "—" if share is None else f"{share:.1%}"


def lag_figure(value: float | None) -> str:
    """A lag, or a dash before the first step."""
    return "—" if value is None else f"{value:.3g}"

"""The processes of a run as a table: one line each, or one for each service where they are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from pipeline.watch import Seen, newest
from pipeline.watch.advice import UNITS
from services.view.blocks import Column, columns
from services.view.rates import Pace, Rates
from services.view.words import figure, rough

HEADS = (
    Column("process", elastic=True),
    Column("version", right=True),
    Column("holds", right=True),
    Column("busy", right=True),
    Column("a second", right=True),
    Column("waits for", elastic=True),
)
SINCE_SECONDS = 2.0
"""A wait is only told for how long it lasts once it is worth it."""


def table(beats: Sequence[Seen], rates: Rates, *, width: int, most: int) -> list[Text]:
    """A line of titles and one for each process; for each service where that is over `most`."""
    known = newest(beats)
    groups = [[seen] for seen in known] if len(known) < most else _by_service(known)
    return columns(HEADS, [_row(group, rates.paces) for group in groups], width)


def lines_of(beats: Sequence[Seen]) -> tuple[int, int]:
    """How many lines the table has at most, and at least."""
    known = newest(beats)
    return (1 + len(known), 1 + len(_by_service(known))) if known else (0, 0)


def _by_service(known: Sequence[Seen]) -> list[list[Seen]]:
    out: dict[str, list[Seen]] = {}
    for seen in known:
        out.setdefault(seen.beat.service, []).append(seen)
    return [*out.values()]


def _row(group: Sequence[Seen], paces: Mapping[str, Pace]) -> list[Text]:
    beat = group[0].beat
    own = [paces.get(seen.beat.boot, Pace()) for seen in group]
    name = beat.instance if len(group) == 1 else f"{beat.service} ({len(group)})"
    return [
        Text(name, "bold"),
        Text(_versions(group)),
        Text(f"{sum(seen.held for seen in group):,}"),
        Text(_busy(own)),
        _work(beat.service, own),
        _waits(group),
    ]


def _versions(group: Sequence[Seen]) -> str:
    known = [seen.beat.version for seen in group if seen.beat.version >= 0]
    if not known:
        return "—"
    return str(max(known)) if min(known) == max(known) else f"{min(known)}-{max(known)}"


def _busy(paces: Sequence[Pace]) -> str:
    known = [pace.busy for pace in paces if pace.busy is not None]
    return f"{sum(known) / len(known):.0%}" if known else "—"


def _work(service: str, paces: Sequence[Pace]) -> Text:
    known = [pace.work for pace in paces if pace.work is not None]
    if not known:
        return Text("—")
    work = sum(known)
    told = figure(work) if work >= 10 or not work else f"{work:.2g}"
    return Text.assemble(told, (f" {UNITS[service]}", "dim"))


def _waits(group: Sequence[Seen]) -> Text:
    """What one does; of several how many do what, what is wrong first."""
    told = [_does(seen) for seen in group]
    if len(told) == 1:
        return told[0].append_text(_since(group[0]))
    counts: dict[str, int] = {}
    styles = {text.plain: text.style for text in told}
    for text in told:
        counts[text.plain] = counts.get(text.plain, 0) + 1
    order = sorted(counts, key=lambda words: ("red" not in str(styles[words]), -counts[words]))
    return Text(", ").join(Text(f"{counts[words]} {words}", styles[words]) for words in order)


def _since(seen: Seen) -> Text:
    told = seen.condition == "waits" and seen.waited_seconds >= SINCE_SECONDS
    return Text(f" for {rough(seen.waited_seconds)}" if told else "", "dim")


def _does(seen: Seen) -> Text:
    match seen.condition:
        case "waits":
            return Text(seen.beat.waiting_for or "")
        case "works":
            return Text("at work", "dim")
        case "silent":
            return Text(f"silent for {rough(seen.age_seconds)}", "red")
        case "stalled":
            return Text(f"stalled for {rough(seen.turn_seconds)}", "red")
        case "quarantined":
            return Text(f"quarantined: {seen.quarantined}", "red")
    return Text(seen.condition, "dim" if seen.ended else "red")

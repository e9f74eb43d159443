"""A snapshot and the steps so far as one picture for a terminal: pure, nothing is asked or kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.ledger import GENERATED, in_flight
from pipeline.run import Run
from pipeline.watch import ENDED, Seen, Snapshot, explain, imbalance, newest
from services.up import totals
from services.up.journal import StepLine
from services.up.rates import Rates
from services.up.words import duration, figure, percent

SILENT_SECONDS = 3.0
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40
EVENTS = 3


def render(
    run: Run,
    snapshot: Snapshot,
    lines: Sequence[StepLine],
    *,
    rates: Rates,
    seconds: float = 0.0,
    events: Sequence[str] = (),
    note: str = "",
) -> RenderableType:
    """The whole panel; pure."""
    numbers = Table.grid(padding=(0, 2), expand=True)
    numbers.add_column(style="dim", width=8, no_wrap=True)
    numbers.add_column(ratio=1)
    for name, value in _numbers(run, snapshot, lines, rates):
        numbers.add_row(name, value)
    parts: list[RenderableType] = [numbers, Text(), _processes(snapshot.beats), Text()]
    parts += [_bullet(sentence, "") for sentence in sentences(snapshot)]
    parts += [_bullet(event, "yellow") for event in events[-EVENTS:]]
    if note:
        parts.append(_bullet(note, "bold"))
    title = f"[bold]{run.name}[/bold]"
    subtitle = f"[dim]{duration(seconds)}[/dim]"
    return Box(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=subtitle,
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="blue",
        padding=(0, 1),
    )


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The values from left to right as bars, the last `width` of them if there are more."""
    values = _binned(values, width)
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = high - low or 1.0
    return "".join(SPARKS[round((v - low) / span * (len(SPARKS) - 1))] for v in values)


def sentences(snapshot: Snapshot) -> list[str]:
    """Who waits for whom, once there is anybody."""
    return explain(snapshot) if snapshot.beats else ["the processes are starting"]


def _numbers(
    run: Run, snapshot: Snapshot, lines: Sequence[StepLine], rates: Rates
) -> Iterator[tuple[str, RenderableType]]:
    last = lines[-1] if lines else StepLine(step=0)
    yield "step", _progress(snapshot.state.step, run.steps)
    yield "reward", _reward(lines)
    yield (
        "lag",
        _words(mean=lag_figure(last.lag_mean), max=f"{lag_figure(last.lag_max)} of {run.lag.max}"),
    )
    yield "tokens/s", _words(generated=figure(rates.generated), trained=figure(rates.trained))
    yield "idle", _words(**{s: percent(share) for s, share in rates.idle.items()})
    yield "places", _places(snapshot)
    yield "refused", _refused(snapshot)
    yield "ledger", _ledger(snapshot)


def _progress(step: int, steps: int) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    row.add_column(width=SPARK_WIDTH)
    row.add_column()
    bar = ProgressBar(total=steps, completed=step, width=SPARK_WIDTH, complete_style="blue")
    row.add_row(bar, Text.assemble((f"{step:,}", "bold"), f" of {steps:,}"))
    return row


def _reward(lines: Sequence[StepLine]) -> Text:
    rewards = [line.reward for line in lines if line.reward is not None]
    if not rewards:
        return Text("—")
    spark = sparkline(rewards).ljust(SPARK_WIDTH)
    return Text.assemble(
        (spark, "green"), "  ", (f"{rewards[-1]:.3f}", "bold"), (f" from {rewards[0]:.3f}", "dim")
    )


def _places(snapshot: Snapshot) -> Text:
    places = snapshot.places
    text = _words(prompts=str(places.prompts), open=str(places.open), groups=str(places.groups))
    return text.append(f"   {places.alive} of {snapshot.window} alive", "dim")


def _refused(snapshot: Snapshot) -> Text:
    shown = {fate: f"{count:,}" for fate, count in totals.refused(snapshot.ledger).items()}
    return _words(**shown) if shown else Text("none", "dim")


def _ledger(snapshot: Snapshot) -> Text:
    fates = {f: s.tokens for f, s in snapshot.ledger.items() if f != GENERATED and s.tokens}
    rest = in_flight(snapshot.ledger)
    generated = snapshot.ledger[GENERATED].tokens if GENERATED in snapshot.ledger else 0
    good = not imbalance(snapshot)
    text = Text("balanced" if good else "OFF BALANCE", "green" if good else "bold red")
    text.append(f"  {generated:,}", "bold").append(" generated =", "dim")
    for fate, tokens in (*sorted(fates.items(), key=_most), ("in flight", rest)):
        text.append(f" {tokens:,} ", "default").append(f"{fate} +", "dim")
    text.right_crop(2)
    return text


def _most(item: tuple[str, int]) -> int:
    return -item[1]


def _processes(beats: Sequence[Seen]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True, pad_edge=False)
    table.add_column("process")
    for name in ("version", "holds"):
        table.add_column(name, justify="right")
    table.add_column("waits for", ratio=1)
    table.add_column("silent", justify="right")
    for seen in newest(beats):
        table.add_row(*_process(seen))
    return table


def _process(seen: Seen) -> tuple[Text, ...]:
    beat = seen.beat
    silent = seen.age_seconds > SILENT_SECONDS and beat.waiting_for != ENDED
    return (
        Text(beat.instance, "bold"),
        Text(str(beat.version) if beat.version >= 0 else "—"),
        Text(f"{seen.held:,}"),
        _waits(seen),
        Text(duration(seen.age_seconds), "red" if silent else "dim"),
    )


def _waits(seen: Seen) -> Text:
    if seen.quarantined:
        return Text(f"quarantined: {seen.quarantined}", "red")
    if seen.beat.waiting_for == ENDED:
        return Text(ENDED, "dim")
    if not seen.alive:
        return Text("dead", "red")
    return Text(seen.beat.waiting_for) if seen.beat.waiting_for else Text("busy", "dim")


def _bullet(sentence: str, style: str) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_column(ratio=1)
    row.add_row(Text("•", "blue"), Text(sentence, style))
    return row


def _words(**values: str) -> Text:
    """name value, name value, with the names in the background."""
    pairs = [Text.assemble((f"{name} ", "dim"), value) for name, value in values.items()]
    return Text("   ").join(pairs) if pairs else Text("—")


def lag_figure(value: float | None) -> str:
    """A lag, or a dash before the first step."""
    return "—" if value is None else f"{value:.3g}"


def _binned(values: Sequence[float], width: int) -> Sequence[float]:
    if len(values) <= width:
        return values
    edges = [len(values) * n // width for n in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]

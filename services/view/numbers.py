"""The run in numbers: how far it is, its rates, its queues, and how its tokens ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from pipeline.ledger import GENERATED, in_flight
from pipeline.watch import Evaluation, Snapshot, imbalance
from pipeline.watch.finding import plural
from services.view import totals
from services.view.blocks import crop, curve, sampled
from services.view.rates import Rates
from services.view.scene import Scene, held_out, trainer
from services.view.words import figure, rough

NAME = 10
"""Room for the name of a line."""
GAP, LEAST_BAR = 2, 10
MOST_POINTS = 16
"""Of a curve that stands in a line."""
EVENTS = 3
"""The last so many are told."""


def progress(scene: Scene, width: int) -> Text:
    """How many steps were made, of how many, and how long the rest may take."""
    state, steps = scene.snapshot.state, scene.steps
    line = _named("step").append(f"{state.step:,}", "bold")
    if steps is not None:
        line.append(f" of {steps:,}", "dim")
    told = _about(scene, width - line.cell_len)
    room = width - line.cell_len - len(told) - GAP
    if steps is not None and room >= LEAST_BAR:
        done = round(min(1.0, state.step / steps) * room)
        line.append(" " * GAP).append("━" * done, "blue").append("─" * (room - done), "dim")
    return crop(line.append(told), width)


def _about(scene: Scene, room: int) -> str:
    """As much as there is room for, the most useful first."""
    state, told = scene.snapshot.state, ""
    parts = [
        _left(scene),
        f"version {state.version}" if state.version >= 0 else "no version",
        f"epoch {state.epoch}" if state.epoch > 1 else "",
    ]
    for part in filter(None, parts):
        if len(told) + GAP + len(part) <= room:
            told += " " * GAP + part
    return told


def _left(scene: Scene) -> str:
    """At the pace of the trainer that leads, over all its steps."""
    state, last = scene.snapshot.state, trainer(scene.snapshot)
    rest = 0 if scene.steps is None else scene.steps - state.step
    if last is None or not last.alive or rest <= 0 or state.stop:
        return ""
    made, spent = (last.beat.totals.get(name, 0.0) for name in ("steps", "wall_seconds"))
    return f"about {rough(rest * spent / made)} left" if made else ""


def numbers(scene: Scene, width: int) -> list[Text]:
    """A line each: tokens a second, places, the ledger, and what was refused or evaluated, if
    anything was.
    """
    snapshot = scene.snapshot
    lines = [_rates(scene.rates), _places(snapshot), _ledger(snapshot, width)]
    if refused := totals.refused(snapshot.ledger):
        lines.append(_refused(refused, width))
    if (points := held_out(snapshot)) or snapshot.evaluation.version >= 0:
        lines.append(_held_out(points, snapshot.evaluation, width))
    return [crop(line, width) for line in lines]


def _rates(rates: Rates) -> Text:
    line = _named("tokens/s")
    return line.append_text(
        Text.assemble(
            (figure(rates.generated), "bold"),
            (" generated   ", "dim"),
            (figure(rates.trained), "bold"),
            (" trained", "dim"),
        )
    )


def _places(snapshot: Snapshot) -> Text:
    places = snapshot.places
    line = _named("places").append(f"{places.alive:,}", "bold")
    line.append(f" of {snapshot.window:,}: ", "dim")
    parts = (("in generation", places.prompts), ("in scoring", places.open))
    return line.append_text(_joined([*parts, ("ready", places.groups)], ", "))


def _ledger(snapshot: Snapshot, width: int) -> Text:
    """The sum of the fates, the largest first, and as many as there is room for."""
    generated = snapshot.ledger[GENERATED].tokens if GENERATED in snapshot.ledger else 0
    fates = {f: s.tokens for f, s in snapshot.ledger.items() if f != GENERATED and s.tokens}
    ends = [*fates.items(), ("in flight", in_flight(snapshot.ledger))]
    parts = sorted(ends, key=lambda part: -part[1])
    line = _named("tokens").append(f"{generated:,}", "bold").append(" = ", "dim")
    if imbalance(snapshot):
        line = _named("tokens").append("OFF BALANCE ", "bold red").append(f"{generated:,} ≠ ")
    return _fitted(line, parts, width, joint=" + ")


def _refused(refused: dict[str, int], width: int) -> Text:
    line = _named("refused").append(f"{plural(sum(refused.values()), 'member')}: ", "dim")
    parts = sorted(refused.items(), key=lambda part: -part[1])
    return _fitted(line, parts, width, joint=", ")


def _held_out(points: Sequence[tuple[float, float]], standing: Evaluation, width: int) -> Text:
    """The curve so far, from the first version to the last, and what is being evaluated."""
    line, told = _named("held out"), ""
    if standing.version >= 0:
        left = f"{standing.left:,} of {plural(standing.size, 'group')} left"
        told = f"{standing.version}: {left}"
    if not points:
        return line.append(f"version {told}")
    (_, first), (version, last) = points[0], points[-1]
    line.append(f"{last:.3f}", "bold").append(f" from {first:.3f} ", "dim")
    rest = f" version {version:.0f}" + (f"; {told}" if told else "")
    room = min(len(points), MOST_POINTS, width - line.cell_len - len(rest))
    drawn = curve(sampled(points, room), 1)[0]
    return line.append(drawn, "green").append(rest, "dim")


def _fitted(line: Text, parts: Sequence[tuple[str, int]], width: int, *, joint: str) -> Text:
    """The parts behind the line's start; what there is no room for is added up."""
    for kept in range(len(parts), 0, -1):
        shown = [*parts[:kept]]
        if rest := parts[kept:]:
            shown.append(("other", sum(count for _, count in rest)))
        whole = line.copy().append_text(_joined(shown, joint))
        if whole.cell_len <= width:
            return whole
    return line.append_text(_joined(parts, joint))


def _joined(parts: Sequence[tuple[str, int]], joint: str) -> Text:
    told = [Text.assemble(f"{count:,}", (f" {name}", "dim")) for name, count in parts]
    return Text.assemble((joint, "dim")).join(told)


def _named(name: str) -> Text:
    return Text.assemble((f"{name:<{NAME}}", "dim"))


def notes(scene: Scene) -> Iterator[tuple[str, str]]:
    """Sentences with their style: what goes on, what happened, who waits, what would help."""
    if scene.note:
        yield scene.note, "bold"
    for event in scene.events[-EVENTS:]:
        yield event, "yellow"
    for sentence in scene.said:
        yield sentence, ""
    for sentence in scene.advice:
        yield sentence, "dim"

"""report.json: every number of a run, made once, from its last snapshot and what lies in its
folder. report.html is drawn from report.json alone, by `page.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pipeline.bus.connection import mask
from pipeline.ledger import in_flight
from pipeline.run import Run
from pipeline.watch import Snapshot, imbalance
from services.up import totals
from services.up.journal import Journal, StepLine
from services.up.machine import machine
from services.up.outcome import Outcome
from services.up.series import Series, mean, ratio, thin

TIMED = ("inference", "training")


class Fate(Struct, frozen=True):
    """A line of the ledger."""

    members: int
    tokens: int


class Point(Struct, frozen=True, kw_only=True):
    """Held-out accuracy of one version: mean over samples with its standard error, and greedy."""

    version: int
    step: int = 0
    seconds: float = 0.0
    sampled: float | None = None
    sampled_error: float | None = None
    greedy: float | None = None


class Report(Struct, frozen=True, kw_only=True):
    """All that report.html shows. Seconds are those of the trainer's loop; shares are of 1.

    `reward_*` and `greedy_*` are held-out means, of samples as in the run and of greedy answers;
    `training_reward_*` are those of the first and the last step's own groups.
    `tokens_per_second` is over `seconds`; medians of several engines are the median engine's.
    `skipped_steps` had no finite gradient. `members_refused` is by fate. `balanced`: every token
    generated has one fate; while groups are alive, those without one may be theirs.
    """

    name: str
    outcome: Literal["done", "failed", "stopped", "running"]
    reason: str
    started: str
    steps: int
    skipped_steps: int = 0
    target_steps: int
    versions: int
    flips: int
    seconds: float
    training_reward_first: float | None
    training_reward_last: float | None
    reward_first: float | None
    reward_last: float | None
    greedy_first: float | None
    greedy_last: float | None
    members_trained: int
    members_refused: dict[str, int]
    share_of_members_spanning_versions: float | None
    lag_mean: float | None
    lag_max: float | None
    ledger: dict[str, Fate]
    in_flight_tokens: int
    balanced: bool
    tokens_per_second: dict[str, float | None]
    busy_share: dict[str, float | None]
    idle_share: dict[str, float | None]
    other_share: dict[str, float | None]
    swap_pause_seconds: float | None
    random_pause_seconds: float | None
    decode_step_seconds: float | None
    evaluation: list[Point]
    restarts: dict[str, int]
    machine: dict[str, str]
    config: dict[str, Any]
    series: Series


def write(
    folder: Path,
    run: Run,
    snapshot: Snapshot,
    *,
    outcome: Outcome,
    started: str,
    restarts: Mapping[str, int],
) -> Report:
    """Writes report.json into the run's folder."""
    report = build(
        run,
        snapshot,
        Journal(folder / "metrics.jsonl").read(),
        points=read_points(folder / "evaluation.json"),
        outcome=outcome,
        started=started,
        restarts=restarts,
    )
    path = folder / "report.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


def read_points(path: Path) -> list[Point]:
    """The held-out points by version; none where nothing was evaluated."""
    if not path.exists():
        return []
    points = msgspec.json.decode(path.read_bytes())["points"]
    return sorted(msgspec.convert(points, list[Point]), key=lambda point: point.version)


def build(
    run: Run,
    snapshot: Snapshot,
    lines: Sequence[StepLine],
    *,
    points: Sequence[Point] = (),
    outcome: Outcome,
    started: str = "",
    restarts: Mapping[str, int] | None = None,
) -> Report:
    """The report of a run, also of one in flight. Pure, but for what it says of the machine."""
    engines = totals.of_service(snapshot.beats, "inference")
    trainers = totals.of_service(snapshot.beats, "training")
    seconds = totals.total(trainers, "wall_seconds") or (lines[-1].seconds if lines else 0.0)
    ledger = {fate: Fate(s.members, s.tokens) for fate, s in snapshot.ledger.items()}
    trained = ledger.get("trained", Fate(0, 0))
    spent = {s: totals.shares(totals.of_service(snapshot.beats, s)) for s in TIMED}
    return Report(
        name=run.name,
        outcome=outcome.word,
        reason=outcome.reason,
        started=started,
        steps=snapshot.state.step,
        skipped_steps=int(totals.total(trainers, "skipped_steps")),
        target_steps=run.steps,
        versions=snapshot.state.version + 1,
        flips=int(totals.total(engines, "flips")),
        seconds=seconds,
        training_reward_first=lines[0].reward if lines else None,
        training_reward_last=lines[-1].reward if lines else None,
        reward_first=points[0].sampled if points else None,
        reward_last=points[-1].sampled if points else None,
        greedy_first=points[0].greedy if points else None,
        greedy_last=points[-1].greedy if points else None,
        members_trained=trained.members,
        members_refused=totals.refused(snapshot.ledger),
        share_of_members_spanning_versions=ratio(
            sum(line.members_spanning for line in lines), sum(line.members for line in lines)
        ),
        lag_mean=mean([line.lag_mean for line in lines], [line.tokens for line in lines]),
        lag_max=max((x for line in lines if (x := line.lag_max) is not None), default=None),
        ledger=ledger,
        in_flight_tokens=in_flight(snapshot.ledger),
        balanced=not imbalance(snapshot),
        tokens_per_second={
            "generated": ratio(totals.total(engines, "tokens"), seconds),
            "trained": ratio(trained.tokens, seconds),
        },
        busy_share={service: spent[service]["busy"] for service in TIMED},
        idle_share={service: spent[service]["idle"] for service in TIMED},
        other_share={service: spent[service]["other"] for service in TIMED},
        swap_pause_seconds=totals.median_gauge(engines, "swap_pause_seconds"),
        random_pause_seconds=totals.median_gauge(engines, "random_pause_seconds"),
        decode_step_seconds=totals.median_gauge(engines, "decode_step_seconds"),
        evaluation=list(points),
        restarts=dict(restarts or {}),
        machine=machine(),
        config=_shown(run),
        series=thin(lines),
    )


def _shown(run: Run) -> dict[str, Any]:
    """The configuration without what is nobody's business: a password in the server's URL."""
    tree: dict[str, Any] = msgspec.to_builtins(run)
    tree["bus"]["url"] = mask(run.bus.url)
    return tree

"""report.json: every number of a run, made once, from its last snapshot and what lies in its
folder. report.html is drawn from report.json alone, by `page.py`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pipeline.watch.gaming import Signs
from services.view.series import Series

log = logging.getLogger(__name__)


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
    pass_at: dict[int, float] = {}


class Least(Struct, frozen=True):
    """Who is trained least often of all tasks, or of all lengths (up to so many tokens).

    `share` is their part of the trained members over their part of the sampled ones: 1 is fair.
    """

    by: str
    name: str
    share: float


class _Points(Struct, frozen=True):
    points: list[Point]


class Report(Struct, frozen=True, kw_only=True):
    """All that report.html shows. Seconds are those of the trainer's loop; shares are of 1.

    `reward_*` and `greedy_*` are held-out means, of samples as in the run and of greedy answers;
    `training_reward_*` are those of the first and the last step's own groups.
    `tokens_per_second` is over `seconds`; medians of several engines are the median engine's.
    `skipped_steps` had no usable gradient. `members_refused` is by fate. `balanced`: every token
    generated has one fate; while groups are alive, those without one may be theirs; None where the
    ledger was out of reach, and so is all that only the server knows. `lag_tokens` were trained, by
    lag; `least_shares` are as the last step left them, and `canary_gap_nats` is the largest that an
    engine had when it was last examined. `gaming` is what the last steps showed of a reward that is
    gamed, and `suspicions` say where that is too much. `idle_seconds` are by service and by what it
    waited for. `now` and `advice` are what there is to say of a run in flight. `restarts` is None
    where that is not known.
    """

    name: str
    outcome: Literal["done", "failed", "stopped", "running", "unknown"]
    reason: str
    started: str
    made: str = ""
    steps: int
    skipped_steps: int = 0
    target_steps: int | None
    flips: int | None
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
    lag_limit: int | None = None
    lag_tokens: dict[str, int] = {}
    mismatch_k3: float | None = None
    engine_k3: float | None = None
    drift_k3: float | None = None
    canary_gap_nats: float | None = None
    ess: float | None = None
    least_shares: list[Least] = []
    gaming: Signs = Signs()
    suspicions: list[str] = []
    ledger: dict[str, Fate]
    in_flight_tokens: int
    balanced: bool | None
    tokens_per_second: dict[str, float | None]
    busy_share: dict[str, float | None]
    idle_share: dict[str, float | None]
    other_share: dict[str, float | None]
    idle_seconds: dict[str, dict[str, float]] = {}
    swap_pause_seconds: float | None
    random_pause_seconds: float | None
    decode_step_seconds: float | None
    evaluation: list[Point]
    restarts: dict[str, int] | None
    now: list[str] = []
    advice: list[str] = []
    machine: dict[str, str]
    config: dict[str, Any]
    series: Series


def save(report: Report, folder: Path) -> None:
    """Writes report.json."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (folder / "report.json").write_bytes(text + b"\n")


def read(folder: Path) -> Report:
    """Reads report.json; raises OSError, or msgspec.MsgspecError for that of another release."""
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)


def read_points(path: Path) -> list[Point]:
    """The held-out points by version; none where nothing was evaluated, or it cannot be read."""
    if not path.exists():
        return []
    try:
        points = msgspec.json.decode(path.read_bytes(), type=_Points).points
    except msgspec.MsgspecError as exc:
        log.warning("file=%s cannot be read: %r", path, exc)
        return []
    return sorted(points, key=lambda point: point.version)

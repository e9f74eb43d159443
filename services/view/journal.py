"""metrics.jsonl, one line a step, as the trainer writes it. No numbers are made here: the report
does that.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.watch.gaming import Signs

log = logging.getLogger(__name__)


class Shadowed(Struct, frozen=True):
    """A shadow scorer's mean reward in a step, and that of the run over the same members."""

    shadow: float | None = None
    reward: float | None = None


class StepLine(Struct, frozen=True, kw_only=True):
    """What the views need of one step; a number that was not finite is None.

    `finite` is False for a step that was skipped: nothing of it was trained. `generated_tokens` are
    those of the run up to then; `lag_tokens` the step's own, by lag. `least_share` is of 1, and
    `least_shared` whose it is, by task and by length. `shadow` has of each shadow scorer its mean
    reward and that of the same members, and `gaming` what the steps up to then show.
    """

    step: int
    seconds: float = 0.0
    finite: bool = True
    reward: float | None = None
    members: float = 0
    members_spanning: float = 0
    tokens: float = 0
    lag_mean: float | None = None
    lag_max: float | None = None
    lag_tokens: tuple[tuple[int, int], ...] = ()
    generated_tokens: int | None = None
    mismatch_k3: float | None = None
    engine_k3: float | None = None
    drift_k3: float | None = None
    ess: float | None = None
    refused: dict[str, int] = {}
    least_share: dict[str, float | None] = {}
    least_shared: dict[str, str] = {}
    shadow: dict[str, Shadowed] = {}
    gaming: Signs = Signs()
    time: float = 0.0


def read_steps(path: Path) -> list[StepLine]:
    """Every whole line so far; none where there is no file. What cannot be read is logged."""
    decoder, lines = msgspec.json.Decoder(StepLine), list[StepLine]()
    written = path.read_bytes() if path.exists() else b""
    for line in written[: written.rfind(b"\n") + 1].splitlines():
        try:
            lines.append(decoder.decode(line))
        except msgspec.DecodeError as exc:
            log.warning("file=%s unreadable line: %s", path, exc)
    return lines

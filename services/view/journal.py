"""metrics.jsonl, one line a step, as the trainer writes it: read as it grows. No numbers are made
here: the report does that.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)


class StepLine(Struct, frozen=True, kw_only=True):
    """What the views need of one step; a number that was not finite is None.

    `generated_tokens` are those of the run up to then; `lag_tokens` the step's own, by lag.
    """

    step: int
    seconds: float = 0.0
    reward: float | None = None
    members: float = 0
    members_spanning: float = 0
    tokens: float = 0
    lag_mean: float | None = None
    lag_max: float | None = None
    lag_tokens: tuple[tuple[int, int], ...] = ()
    generated_tokens: int | None = None
    mismatch_k3: float | None = None
    ess: float | None = None
    refused: dict[str, int] = {}
    time: float = 0.0
    busy_seconds: float = 0.0
    idle_seconds: float = 0.0
    other_seconds: float = 0.0


class Journal:
    """Follows one file; a last line that is still being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self.lines: list[StepLine] = []
        self._path, self._offset = path, 0
        self._decoder = msgspec.json.Decoder(StepLine)

    def read(self) -> list[StepLine]:
        """Every whole line so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                grown = file.read()
        except FileNotFoundError:
            return self.lines
        whole = grown[: grown.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return self.lines

    def _take(self, line: bytes) -> None:
        try:
            self.lines.append(self._decoder.decode(line))
        except msgspec.DecodeError as exc:
            log.warning("file=%s unreadable line: %s", self._path, exc)

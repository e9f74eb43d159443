"""metrics.jsonl as a run of Weights & Biases, whose own variables say who one is, and where."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from services.training.sinks.scalars import scalars

ID = "wandb-id"


class Wandb:
    """Training that goes on does so under the same id, without batches that are known there."""

    def __init__(self, *, folder: Path, project: str = "sluice") -> None:
        """`folder` is the run's; its name is the run's name there, too."""
        self._folder, self._project = folder, project
        self._run: Any = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Every number of it, at its batch."""
        self._run = self._run or self._begin()
        if line["batch"] >= self._run.step:
            self._run.log(scalars(line), step=line["batch"])

    def close(self) -> None:
        """Wait until all is sent, or stored where there is no network."""
        if self._run:
            self._run.finish()

    def _begin(self) -> Any:
        known = self._folder / ID
        if not known.exists():
            known.write_text(secrets.token_hex(4))
        return wandb.init(
            project=self._project,
            name=self._folder.name,
            id=known.read_text(),
            resume="allow",
            dir=str(self._folder),
        )

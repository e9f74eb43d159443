"""metrics.jsonl as TensorBoard reads it: runs/NAME/tensorboard, every number over the batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from services.training.sinks.scalars import scalars

FILES = "events.out.tfevents.*"


class TensorBoard:
    """Each process writes the folder anew, from the first line on: no batch is there twice."""

    def __init__(self, *, folder: Path) -> None:
        """`folder` is the run's."""
        self._folder = folder / "tensorboard"
        self._writer: EventFileWriter | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Every number of it, at its batch and its time."""
        writer = self._writer = self._writer or self._begin()
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in scalars(line).items()]
        summary = Summary(value=values)
        writer.add_event(Event(step=line["batch"], wall_time=line["time"], summary=summary))
        writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer:
            self._writer.close()

    def _begin(self) -> EventFileWriter:
        for former in self._folder.glob(FILES):
            former.unlink()
        return EventFileWriter(str(self._folder))

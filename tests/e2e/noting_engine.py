"""The hf engine, which writes down by which versions each of its answers was made."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.messages import Completion
from pipeline.model.policy import load_policy
from pipeline.model.tokens import end_ids
from pipeline.run import Model, Swap
from services.inference.engines.hf.engine import HfEngine


class Noting(HfEngine):
    """A line for each answer: its group, member, and the versions in its spans."""

    def step(self) -> list[Completion]:
        done = super().step()
        with Path(f"answers.{self.boot}").open("a") as file:
            for one in done:
                versions = [span.version for span in one.spans]
                file.write(json.dumps([one.group, one.member, versions]) + "\n")
        return done


def build(model: Model, *, boot: str, swap: Swap, slots: int = 32) -> Noting:
    """The engine over a run's model."""
    loaded = load_policy(model, dtype=model.dtype)
    return Noting(loaded, boot=boot, end_ids=end_ids(model.path), swap=swap, slots=slots)

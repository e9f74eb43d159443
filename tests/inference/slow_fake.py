"""The fake engine, whose steps take a while; it loads no torch."""

from __future__ import annotations

import time

from pipeline.messages import Completion
from pipeline.run import Model
from services.inference.engines.fake import FakeEngine


class SlowFake(FakeEngine):
    """Its sequences end at their length alone."""

    def step(self) -> list[Completion]:
        time.sleep(0.02)
        return super().step()


def build(model: Model, *, boot: str, swap: str = "keep") -> SlowFake:
    """As the run's engine; its ids are those of `letter_models`."""
    return SlowFake(boot=boot, vocabulary=260, end_ids=frozenset())

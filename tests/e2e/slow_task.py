"""A fake engine on which one task is five times as slow, and a reward that tells members apart."""

from __future__ import annotations

import time
import zlib

from pipeline.messages import Completion
from pipeline.protocols import Answer
from pipeline.run import Model, Swap
from services.inference.engines.fake import FakeEngine, Row

SLOW, TIMES = "slow", 5


class Uneven(FakeEngine):
    """Of the slow task's members a token is drawn at every fifth step alone."""

    turn, seconds = 0, 0.0

    def step(self) -> list[Completion]:
        time.sleep(self.seconds)
        self.turn += 1
        return super().step()

    def _draw(self, row: Row) -> bool:
        if row.member.prompt.task == SLOW and self.turn % TIMES and row.ids:
            return False
        return super()._draw(row)


def build(model: Model, *, boot: str, swap: Swap, seconds: float, slots: int = 128) -> Uneven:
    """An engine whose steps take `seconds`."""
    engine = Uneven(boot=boot, slots=slots, vocabulary=22, end_ids=frozenset(), swap=swap)
    engine.seconds = seconds
    return engine


class Letters:
    """Any number, by what was written."""

    version = "1"

    def __call__(self, answer: Answer) -> float:
        return zlib.crc32(answer.text.encode()) / 2**32

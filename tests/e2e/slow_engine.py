"""The hf engine, held up at each step: what a user's own engine looks like, and stale tokens."""

from __future__ import annotations

import time

from pipeline.messages import Completion
from pipeline.run import Model
from services.inference.engines.hf.engine import HfEngine
from services.inference.engines.hf.engine import build as build_hf


def build(model: Model, *, boot: str, swap: str, slots: int, seconds: float) -> HfEngine:
    """An engine whose steps take `seconds` more."""
    engine = build_hf(model, boot=boot, swap=swap, slots=slots)  # type: ignore[arg-type]
    step = engine.step

    def slow() -> list[Completion]:
        time.sleep(seconds)
        return step()

    engine.step = slow  # type: ignore[method-assign]
    return engine

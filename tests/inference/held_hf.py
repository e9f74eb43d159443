"""The hf engine, with a hand on its steps and on its fingerprints."""

from __future__ import annotations

import threading
from typing import Any

from pipeline.messages import Completion
from pipeline.model.policy import load_policy
from pipeline.model.tokens import end_ids
from pipeline.run import Model
from services.inference.engines.hf.engine import HfEngine

PATIENCE_SECONDS = 20.0


class HeldHf(HfEngine):
    """Makes as many steps as it is allowed; `wrong_flips` says how often a version is off."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.allowed, self.is_bounded = threading.Semaphore(0), False
        self.wrong_flips: dict[int, int] = {}
        self.may_prove = threading.Event()
        self.may_prove.set()

    def hold(self) -> None:
        """From now on each step has to be allowed."""
        self.is_bounded = True

    def allow(self, steps: int) -> None:
        """So many steps more."""
        for _ in range(steps):
            self.allowed.release()

    def step(self) -> list[Completion]:
        if self.is_bounded and not self.allowed.acquire(timeout=0.005):
            return []
        return super().step()

    def fingerprint(self) -> str:
        version, live = self.version, super().fingerprint()
        assert self.may_prove.wait(PATIENCE_SECONDS), "the proof was held back for too long"
        if self.wrong_flips.get(version, 0) > 0:
            self.wrong_flips[version] -= 1
            return "other"
        return live


def build(model: Model, *, boot: str, swap: str = "keep", slots: int = 8) -> HeldHf:
    """As the run's engine."""
    loaded = load_policy(model, dtype=model.dtype)
    return HeldHf(loaded, boot=boot, end_ids=end_ids(model.path), swap=swap, slots=slots)

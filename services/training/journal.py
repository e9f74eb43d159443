"""What training leaves on disk: a line for each step, and weights kept to be graded."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.ledger import total
from services.training.considered import TRAINED, ZERO_SIGNAL
from services.training.optimize import Step
from services.training.pool import Tally

Save = Callable[[str], None]


class Journal:
    """Writes `metrics.jsonl`, `weights/v{version}/` and `weights/kept.jsonl`."""

    def __init__(self, folder: Path, save: Save, *, keep_every: int = 0) -> None:
        """`save` writes the model to a folder; of `keep_every` versions one is kept; 0: none."""
        self._save = save
        self._weights, self._every = folder / "weights", keep_every
        self._weights.mkdir(parents=True, exist_ok=True)
        self._lines = (folder / "metrics.jsonl").open("a", buffering=1)
        self._kept = (self._weights / "kept.jsonl").open("a", buffering=1) if keep_every else None
        self._last_kept = -1
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._started

    def write(self, line: dict[str, Any]) -> None:
        """One step; numbers that are not finite become null, which JSON can say."""
        known = {"time": time.time(), "seconds": round(self.seconds, 3)}
        self._lines.write(json.dumps(_finite(known | line)) + "\n")

    def keep(self, version: int, step: int, *, last: bool = False) -> None:
        """Keep the version where its turn has come, and the last one always."""
        due = version % self._every == 0 or last if self._every else False
        if not due or version == self._last_kept or self._kept is None:
            return
        seconds = round(self.seconds, 3)
        path = self._weights / f"v{version}"
        self._save(str(path))
        line = {"version": version, "step": step, "seconds": seconds, "path": str(path)}
        self._kept.write(json.dumps(line) + "\n")
        self._last_kept = version

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        if self._kept:
            self._kept.close()


def step_line(step: Step, tally: Tally) -> dict[str, Any]:
    """What a step was made of: its batch, what was refused before and in it, its statistics."""
    batch = step.batch
    fates = total([tally.fates, *batch.fates.values()])
    refused = {f: s for f, s in fates.items() if f not in (TRAINED, ZERO_SIGNAL)}
    return {
        "reward": fmean(tally.rewards) if tally.rewards else batch.statistics["reward_mean"],
        "groups": batch.statistics["groups"],
        "zero_signal_groups": tally.zero_signal_groups,
        "members": batch.statistics["members"],
        "members_spanning": batch.statistics["members_spanning"],
        "refused": {fate: sums.members for fate, sums in refused.items() if sums.members},
        "refused_tokens": {fate: sums.tokens for fate, sums in refused.items() if sums.tokens},
        "completion_tokens": batch.statistics["completion_tokens_mean"],
        "truncated": batch.statistics["truncated_share"],
        **step.statistics.summary(),
        "tokens": batch.tokens,
        "learning_rate": step.learning_rate,
        "grad_norm": step.result.grad_norm,
        "finite": step.result.finite,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

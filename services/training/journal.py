"""What training leaves on disk: a line for each step, and weights kept to be graded."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import msgspec

from pipeline.errors import ConfigError
from pipeline.ledger import total
from services.training.considered import TRAINED, ZERO_SIGNAL
from services.training.metrics import bucket
from services.training.optimize import Step
from services.training.pool import Tally
from services.training.signs import told_of
from services.training.sinks.feeds import Feeds

Save = Callable[[str], None]


class Journal:
    """Writes `metrics.jsonl`, `weights/v{version}/` and `weights/kept.jsonl`."""

    def __init__(
        self, folder: Path, save: Save, *, keep_every: int = 0, feeds: Feeds | None = None
    ) -> None:
        """`save` writes the model to a folder; of `keep_every` versions one is kept; 0: none.

        `feeds` get each line that is written, after those that the file has.
        """
        self._save, self._feeds = save, feeds or Feeds()
        self._weights, self._every = folder / "weights", keep_every
        self._weights.mkdir(parents=True, exist_ok=True)
        self._path = folder / "metrics.jsonl"
        last, self._lines = _reopened(self._path)
        kept, self._kept = _reopened(self._weights / "kept.jsonl")
        self._last_kept = int(kept.get("version", -1))
        self.last_batch = int(last.get("batch", 0))
        self._started = time.monotonic() - float(last.get("seconds", 0.0))
        self._feeds.start(self._path)

    @property
    def seconds(self) -> float:
        """Since training began, without the time in which there was no trainer."""
        return time.monotonic() - self._started

    def write(self, line: dict[str, Any]) -> None:
        """One step; numbers that are not finite become null, which JSON can say."""
        known = {"time": time.time(), "seconds": round(self.seconds, 3)}
        whole = _finite(known | line)
        self._lines.write(json.dumps(whole) + "\n")
        self._feeds.write(whole)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every line so far, of trainers before this one as well."""
        with self._path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def held_out(self) -> set[int]:
        """The versions of whose evaluation a line tells."""
        with self._path.open(encoding="utf-8") as file:
            told = [json.loads(line)["held_out"] for line in file if '"held_out"' in line]
        return {point["version"] for points in told for point in points}

    def keep(self, version: int, step: int, *, last: bool = False) -> None:
        """Keep the version where its turn has come, and the last one always."""
        due = version % self._every == 0 or last if self._every else False
        if not due or version == self._last_kept:
            return
        seconds = round(self.seconds, 3)
        path = self._weights / f"v{version}"
        self._save(str(path))
        line = {"version": version, "step": step, "seconds": seconds, "path": str(path)}
        self._kept.write(json.dumps(line) + "\n")
        self._last_kept = version

    def close(self) -> None:
        """Close the files, and let the sinks have what is on its way to them."""
        self._lines.close()
        self._kept.close()
        self._feeds.close()


def step_line(step: Step, tally: Tally) -> dict[str, Any]:
    """What a step was made of: its batch, what was refused before and in it, its statistics."""
    batch = step.batch
    fates = total([tally.fates, *batch.fates.values()])
    refused = {f: s for f, s in fates.items() if f not in (TRAINED, ZERO_SIGNAL)}
    lengths = Counter((one.reason, bucket(one.tokens)) for one in (*tally.refused, *batch.refused))
    return {
        "reward": fmean(tally.rewards) if tally.rewards else batch.statistics["reward_mean"],
        "groups": batch.statistics["groups"],
        "zero_signal_groups": tally.zero_signal_groups,
        "members": batch.statistics["members"],
        "members_spanning": batch.statistics["members_spanning"],
        "refused": {fate: sums.members for fate, sums in refused.items() if sums.members},
        "refused_tokens": {fate: sums.tokens for fate, sums in refused.items() if sums.tokens},
        "refused_lengths": [[*key, count] for key, count in sorted(lengths.items())],
        "sampled_by": [[*kind, count] for kind, count in sorted(tally.sampled.items())],
        "trained_by": [[*kind, count] for kind, count in sorted(tally.trained.items())],
        "completion_tokens": batch.statistics["completion_tokens_mean"],
        "truncated": batch.statistics["truncated_share"],
        **told_of([*tally.dropped, *batch.groups]),
        **step.statistics.summary(),
        **step.statistics.apart(),
        **step.statistics.streams(),
        "lag_tokens": step.statistics.tokens_by_lag(),
        "by_lag": step.statistics.by_lag(),
        "tokens": batch.tokens,
        "learning_rate": step.learning_rate,
        "grad_norm": step.result.grad_norm,
        "finite": step.result.finite,
    }


def _reopened(path: Path) -> tuple[dict[str, Any], TextIO]:
    """The last whole line of a file of JSON lines, and the file, to go on behind it.

    Raises ConfigError where one of them is broken: whoever reads on may rely on them.
    """
    written = path.read_bytes() if path.exists() else b""
    whole = written[: written.rfind(b"\n") + 1]
    last: dict[str, Any] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            last = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as exc:
            remedy = "remove that line, or move the file away"
            rule = f"is no object of JSON ({exc})"
            raise ConfigError(f"{path}, line {number}", None, rule=rule, remedy=remedy) from exc
    file = path.open("a", buffering=1)
    file.truncate(len(whole))
    return last, file


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

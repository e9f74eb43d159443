"""An engine held against the canary: a short prompt of which each version announces log-probs.

The trainer tells what it finds of the prompt itself; an engine that has the same weights, and
computes what the trainer does, finds about the same. A fingerprint proves the weights alone.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from pipeline import plugins
from pipeline.errors import SluiceError
from pipeline.messages import Canary, Manifest
from pipeline.protocols import Engine
from pipeline.run import Run
from services.inference.metrics import Numbers

log = logging.getLogger(__name__)

LIMITS = {"float32": 1e-3, "bfloat16": 1.0}
"""Of the largest gap, in nats, by the coarser dtype of the two sides. Of a model of 135M the `hf`
engine's was 1.1e-5 at most in float32 and 0.44 in bfloat16, that of a temperature of 0.9 was 1.7.
"""


class Gap(NamedTuple):
    """Between an engine's log-probs of the canary and the trainer's: |difference|, in nats."""

    largest: float
    mean: float


def gap_of(canary: Canary, logprobs: Sequence[float]) -> Gap:
    """Infinite where a log-prob is no number, or there is another number of them."""
    announced = array("f", canary.logprobs)
    apart = [abs(own - other) for own, other in zip(logprobs, announced, strict=False)]
    if len(logprobs) != len(announced) or not all(map(math.isfinite, apart)):
        return Gap(math.inf, math.inf)
    return Gap(max(apart, default=0.0), math.fsum(apart) / max(1, len(apart)))


def fault_of(gap: Gap, limit: float) -> str:
    """Why the gap is too large, as a clause about the version; empty where it is not."""
    if gap.largest <= limit:
        return ""
    return (
        f"the engine's log-probs of the canary are {gap.largest:.2g} nats off the trainer's at"
        f" most, {gap.mean:.2g} on average (limit {limit:g})"
    )


def limit_of(run: Run) -> float:
    """As RUN.toml says; else by the dtypes that engine and trainer compute in."""
    if run.inference.canary_gap is not None:
        return run.inference.canary_gap
    trainers = plugins.options_of(run.training.backend).get("dtype", "float32")
    return max(LIMITS.get(dtype, 0.0) for dtype in (run.model.dtype, trainers))


class Examiner:
    """Has an engine score the canary after its first flip, and after every so many more.

    A flip that fails is not counted, so that the next one is examined as well.
    """

    def __init__(self, engine: Engine, numbers: Numbers, *, limit: float, every: int) -> None:
        """`limit` bounds the largest gap, in nats; of `every` flips one is examined; 0: none."""
        self._engine, self._numbers, self._limit, self._every = engine, numbers, limit, every
        self._canaries: dict[int, Canary] = {}
        self._flips = 0
        numbers.canary_limit.set(limit)

    def expect(self, manifest: Manifest) -> None:
        """The version is being staged."""
        if manifest.canary:
            self._canaries[manifest.version] = manifest.canary

    def fault(self, version: int) -> str:
        """Why the version that was flipped to must not serve; empty where it may.

        To be asked between two passes, by the engine's thread, once after each flip.
        """
        canary = self._canaries.pop(version, None)
        self._canaries = {v: c for v, c in self._canaries.items() if v > version}
        if canary is None or not self._every:
            return ""
        fault = self._examine(canary, version) if self._flips % self._every == 0 else ""
        self._flips += not fault
        return f"version {version}: {fault}" if fault else ""

    def _examine(self, canary: Canary, version: int) -> str:
        try:
            gap = gap_of(canary, self._engine.logprobs(array("i", canary.ids)))
        except SluiceError as exc:  # ids that this engine's model does not have
            return str(exc)
        self._numbers.examined(version, *gap)
        log.info("version=%d canary_gap=%.3g mean=%.3g", version, *gap)
        return fault_of(gap, self._limit)

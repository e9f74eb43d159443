"""The numbers by which a reward is watched for gaming. How they are made: `gaming`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipeline.metrics import Metrics
from pipeline.watch.gaming import AMONG, DIVERGENCE_GAUGE, LENGTH_GAUGE, REPEATED_GAUGE, Signs

NOTHING: dict[str, dict[str, Any]] = {"gaming": {}, "shadow": {}}
"""A line that tells of none."""


class Suspected:
    """Those of the last steps; what is not known is no number, since 0 would be a lie."""

    def __init__(self, metrics: Metrics, shadows: Sequence[str]) -> None:
        """`shadows` are the names of the scorers that only watch."""
        self._names = tuple(shadows)
        self.length = metrics.gauge(
            LENGTH_GAUGE,
            "Correlation of reward and length within groups, of all members that were scored; mean "
            "over the last steps.",
        )
        self.repeated = metrics.gauge_by(
            REPEATED_GAUGE,
            "Answers that only repeat another to the same prompt (attempts), those of them that "
            "are not the best of the step (below_best), and those that are the one most often "
            "given to different prompts (prompts), of all; mean over the last steps.",
            among=AMONG,
        )
        self.shadow = metrics.gauge_by(
            "shadow_reward", "Mean reward of a shadow scorer in the last step.", scorer=self._names
        )
        self.divergence = metrics.gauge_by(
            DIVERGENCE_GAUGE,
            "Standard errors by which the reward rose since this shadow was at its best, or by "
            "which the shadow fell, whichever is less; below 0 one of them did not.",
            scorer=self._names,
        )
        self.observe(NOTHING)

    def observe(self, line: Mapping[str, Any]) -> None:
        """One step, as metrics.jsonl has it."""
        signs, shadow = msgspec.convert(line["gaming"], Signs), line["shadow"]
        self.length.set(_number(signs.length))
        for among in AMONG:
            self.repeated.labels(among=among).set(_number(signs.repeated.get(among)))
        for name in self._names:
            self.shadow.labels(scorer=name).set(_number(shadow.get(name, {}).get("shadow")))
            self.divergence.labels(scorer=name).set(_number(signs.divergence.get(name)))


def _number(value: float | None) -> float:
    return math.nan if value is None else value

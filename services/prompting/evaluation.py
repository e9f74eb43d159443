"""Held-out prompts: when which are admitted, beside the window, and pinned to which version.

Engines that keep the version answer them; what they are worth is for training to note.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import group_name
from pipeline.messages import Prompt, Sampling
from pipeline.order import index
from pipeline.run import Evaluation, Run
from pipeline.watch import Snapshot, keepers
from services.prompting.recipe import Recipe

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
AT_ONCE = 32


class HeldOut:
    """Begins the evaluation of a version once an engine keeps its weights, one at a time.

    Any number of processes may do so: where the groups stand is compared and set with each
    admission. They have a window of their own, as large as the run's.
    """

    def __init__(self, bus: Bus, prompts: Callable[[int, int], Prompt], *, size: int) -> None:
        """`prompts(version, number)` makes group `number` of `size`."""
        self._bus, self._prompts, self._size = bus, prompts, size
        self._look_at = 0.0

    def admit(self) -> None:
        """Some groups, if there is an evaluation to begin or to go on with; returns at once."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        snapshot = self._bus.snapshot()
        standing = snapshot.evaluation
        version = standing.version if standing.version >= 0 else due(snapshot)
        first = standing.cursor if standing.version >= 0 else 0
        room = min(self._size - first, snapshot.window_most - standing.alive, AT_ONCE)
        if version is None or room <= 0:
            return
        prompts = [self._prompts(version, number) for number in range(first, first + room)]
        verdict = self._bus.evaluations.admit(
            prompts, version=version, size=self._size, first=first
        )
        if verdict == "ok":
            self._look_at = 0.0
            if first == 0:
                log.info("evaluation of version=%d begins, groups=%d", version, self._size)


def due(snapshot: Snapshot) -> int | None:
    """The newest version that an engine keeps and whose evaluation is still to come."""
    kept = keepers(snapshot).values()
    return max((v for v in kept if v > snapshot.evaluation.last), default=None)


class HeldOutRecipe:
    """The held-out prompts of a version: for each example a group of samples, then a greedy one.

    Their noise is of the example alone, so that two versions draw by the same.
    """

    def __init__(self, recipe: Recipe, run: Run, evaluation: Evaluation, *, examples: int) -> None:
        """`recipe` makes the prompts of the held-out data set, one epoch of so many."""
        self._recipe, self._examples, self._seed = recipe, examples, run.seed
        self._members = evaluation.members
        self._sampling = msgspec.convert(run.sampling, Sampling, from_attributes=True)
        self.size = 2 * examples

    def __call__(self, version: int, number: int) -> Prompt:
        """Group `number` below `size`."""
        is_greedy, place = divmod(number, self._examples)
        example = index(place, size=self._examples, seed=self._seed)
        sampling = replace(self._sampling, temperature=0.0) if is_greedy else self._sampling
        return replace(
            self._recipe(place),
            group=group_name(version, number),
            seq=number,
            members=1 if is_greedy else self._members,
            sampling=sampling,
            lane="eval",
            pin=version,
            noise=f"{'greedy' if is_greedy else 'sampled'}-{example}",
        )

"""Prompting: admits the data set to the window, prompt by prompt, in the order of the cursor."""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import islice
from typing import Literal

from pipeline.bus.bus import Bus
from pipeline.errors import Gone
from pipeline.life import Life
from pipeline.messages import Prompt
from pipeline.watch.waits import END, MEMORY, WINDOW
from services.prompting.evaluation import HeldOut
from services.prompting.metrics import Numbers
from services.prompting.recipe import Recipe

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05
LOOK_AGAIN_SECONDS = 0.5


class Prompting:
    """Consumes a data set and the free places of the window; publishes prompt groups.

    Waits for places (unblocked by training, which ends groups), for memory (unblocked by the same),
    and at the end of the data for the end of the run. Any number may run: the cursor is compared
    and set with each admission, so who comes second starts again from where the first one left.
    """

    def __init__(
        self,
        bus: Bus,
        life: Life,
        recipe: Recipe,
        *,
        window: int,
        numbers: Numbers,
        held_out: HeldOut | None = None,
    ) -> None:
        """`recipe` makes the prompts; `window` is the number of groups that may be alive."""
        self._held_out = held_out
        self._bus, self._life, self._recipe = bus, life, recipe
        self._window, self._numbers = window, numbers
        self._end, self._cursor = recipe.end, 0
        self._batch = window  # how many are tried at once: halved and doubled as places go
        self._ready: deque[Prompt] = deque()  # made, from the cursor on, and not yet admitted

    def run(self) -> None:
        """Until told to stop."""
        self._synchronise()
        waiting_for: str | None = None
        while not self._life.stopping:
            try:
                self._life.progress(waiting_for=waiting_for)
            except Gone:  # it holds nothing that could be lost
                self._life.reborn()
            with self._numbers.clock("busy"):
                waiting_for = self._admit()
                if self._held_out:
                    self._held_out.admit()
            if waiting_for:
                with self._numbers.clock("idle", waiting_for):
                    time.sleep(LOOK_AGAIN_SECONDS if waiting_for == END else RETRY_SECONDS)

    def _admit(self) -> str | None:
        """One admission. What it waited for, if it could not be."""
        if self._cursor >= self._end and self._over():
            return END
        prompts = self._prepare(self._batch)
        after = self._cursor + len(prompts)
        verdict = self._bus.prompts.admit(
            prompts, cursor=self._cursor, next_cursor=after, eof=after >= self._end
        )
        match verdict:
            case "ok":
                self._advance(after)
            case "moved":
                self._synchronise()
            case "full" | "memory":
                return self._hold_back(verdict)
        return None

    def _advance(self, cursor: int) -> None:
        count = cursor - self._cursor
        for _ in range(count):
            if error := self._ready.popleft().error:
                self._numbers.unusable.labels(reason=error.partition(":")[0]).inc()
        self._cursor = cursor
        self._numbers.groups.inc(count)
        self._batch = min(self._window, self._batch * 2)

    def _hold_back(self, reason: Literal["full", "memory"]) -> str | None:
        """Try fewer at once; where one is too many already, wait."""
        if self._batch > 1:
            self._batch //= 2
            return None
        self._numbers.refusals.labels(reason=reason).inc()
        return WINDOW if reason == "full" else MEMORY

    def _over(self) -> bool:
        """Whether the end of the data is known to all; asked again, since Redis may go back."""
        state = self._bus.state()
        if not state.eof or state.cursor < self._end:
            self._synchronise()
            return False
        return True

    def _synchronise(self) -> None:
        self._cursor = self._bus.state().cursor
        self._ready.clear()
        log.info("cursor=%d of=%d", self._cursor, self._end)

    def _prepare(self, count: int) -> list[Prompt]:
        """The next prompts after the cursor, `count` at most; those made before are kept."""
        stop = min(self._cursor + count, self._end)
        for cursor in range(self._cursor + len(self._ready), stop):
            self._ready.append(self._recipe(cursor))
        return [*islice(self._ready, max(stop - self._cursor, 0))]

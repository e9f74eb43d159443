"""Prompting: admits the data set to the window, prompt by prompt, in the order of the cursor."""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import islice
from typing import Literal

from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import HELD_OUT
from pipeline.errors import Gone, Unusable
from pipeline.families import DATASETS
from pipeline.grades import meanwhile
from pipeline.life import Life
from pipeline.messages import Prompt
from pipeline.metrics import Metrics
from pipeline.model.tokens import Tokenizer, context_length
from pipeline.plugins import make
from pipeline.protocols import Dataset, Text
from pipeline.run import Run
from pipeline.watch.waits import END, MEMORY, WINDOW
from services.process import open_run
from services.prompting.evaluation import HeldOut, HeldOutRecipe
from services.prompting.metrics import Numbers
from services.prompting.recipe import Recipe

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05
LOOK_AGAIN_SECONDS = 0.5
OPEN_SECONDS = 600.0


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


def _first(dataset: Dataset) -> Text:
    """Stands for all of them where nothing has begun; at fault itself, it waits for its turn."""
    try:
        return dataset[0].prompt
    except Unusable:
        return ""


def build(run: Run, bus: Bus, life: Life, metrics: Metrics) -> Prompting:
    """Where the parts of prompting meet; raises ConfigError for a data set that cannot be had.

    The digests of the data and of the held-out data join the run's identity: prompting processes
    whose data differ would admit different prompts under one cursor, and a curve over two held-out
    sets would compare nothing.
    """
    with life.long("data set to open", OPEN_SECONDS):
        dataset: Dataset = make(DATASETS, run.data, at="data")
        held_out = _held_out(run)
        digests = {HELD_OUT: held_out.digest()} if held_out else {}
        open_run(bus, run, data=dataset.digest(), **digests)
        tokenizer = Tokenizer(run.model.path, template=run.model.template)
        tokenizer.check(_first(dataset))
        recipe = _recipe(dataset, run, tokenizer, at="data")
        evaluations = _evaluations(held_out, run, bus, tokenizer=tokenizer) if held_out else None
    return Prompting(
        bus, life, recipe, window=run.window, numbers=Numbers(metrics), held_out=evaluations
    )


def _recipe(dataset: Dataset, run: Run, tokenizer: Tokenizer, *, at: str) -> Recipe:
    context = context_length(run.model.path)
    return Recipe(dataset, run=run, encode=tokenizer.encode, context=context, at=at)


def _held_out(run: Run) -> Dataset | None:
    """The held-out data, if the run's engines are to answer them."""
    if run.evaluation is None or not meanwhile(run):
        return None
    made: Dataset = make(DATASETS, run.evaluation.data, at=HELD_OUT)
    return made


def _evaluations(dataset: Dataset, run: Run, bus: Bus, *, tokenizer: Tokenizer) -> HeldOut:
    assert run.evaluation, "there is held-out data"
    tokenizer.check(_first(dataset))
    recipe = _recipe(dataset, run, tokenizer, at=HELD_OUT)
    prompts = HeldOutRecipe(recipe, run, run.evaluation, examples=len(dataset))
    return HeldOut(bus, prompts, size=prompts.size)

"""Which examples are imitated beside a batch: arithmetic on (seed, batch), as token ids. † torch

They stand in the step's record, so that a replay needs no data set; what becomes of them is in
`streams`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pipeline import plugins
from pipeline.errors import ConfigError, Unusable
from pipeline.families import DATASETS
from pipeline.model.tokens import Tokenizer, context_length
from pipeline.order import index
from pipeline.protocols import Dataset
from pipeline.run import Imitation, Run
from services.training.planned import Imitated

log = logging.getLogger(__name__)

AT = "objective.imitation.data"


class Examples:
    """A data set's examples whose reference is a text, in an order of their own each epoch."""

    def __init__(
        self,
        dataset: Dataset,
        imitation: Imitation,
        tokenizer: Tokenizer,
        *,
        seed: int,
        context: int | None = None,
    ) -> None:
        """Looks at all of them. Those at fault, or longer than the `context`, are left out, and
        said. Raises ConfigError where none is left.
        """
        self._dataset, self._tokenizer, self._context = dataset, tokenizer, context
        self._per_step, self._seed = imitation.per_step, seed
        self._usable = [place for place in range(len(dataset)) if self._is_usable(place)]
        left_out = len(dataset) - len(self._usable)
        if not self._usable:
            rule = f"none of its {left_out} examples can be imitated (see the log)"
            raise ConfigError(AT, None, rule=rule, remedy="give prompts, and texts as references")
        log.info("imitated examples=%d left_out=%d", len(self._usable), left_out)

    def __call__(self, batch: int) -> tuple[Imitated, ...]:
        """Those of a batch, counted from 1; always the same."""
        return tuple(map(self._example, self._places(batch)))

    def digest(self) -> str:
        """Of the data set."""
        return self._dataset.digest()

    def _places(self, batch: int) -> Iterator[int]:
        first = (batch - 1) * self._per_step
        for cursor in range(first, first + self._per_step):
            yield self._usable[index(cursor, size=len(self._usable), seed=self._seed)]

    def _is_usable(self, place: int) -> bool:
        try:
            self._example(place)
        except Unusable as fault:
            log.warning("not imitated: %s", fault)
            return False
        return True

    def _example(self, place: int) -> Imitated:
        """The template is applied once, and the answer ends with the end token. Raises Unusable."""
        row, where = self._dataset[place], f"{AT}, example {place}"
        if not isinstance(row.reference, str) or not row.reference:
            rule, remedy = "its reference is no text to imitate", "write the answer there"
            raise Unusable(where, row.reference, rule=rule, remedy=remedy)
        found = Imitated(
            self._tokenizer.encode(row.prompt, at=where),
            self._tokenizer.encode_answer(row.reference, at=where),
        )
        self._check_length(where, found)
        return found

    def _check_length(self, where: str, found: Imitated) -> None:
        if not found.prompt:
            rule, remedy = "its prompt has no tokens", "write a prompt: it predicts the answer"
            raise Unusable(where, None, rule=rule, remedy=remedy)
        tokens = len(found.prompt) // 4 + found.tokens
        if self._context and tokens > self._context:
            rule = f"it has {tokens} tokens, and the context holds {self._context}"
            raise Unusable(where, None, rule=rule, remedy="shorten it")


def examples_of(run: Run) -> Examples | None:
    """As RUN.toml says; None where nothing is imitated. Raises ConfigError."""
    imitation = run.objective.imitation
    if imitation is None:
        return None
    return Examples(
        plugins.make(DATASETS, imitation.data, at=AT),
        imitation,
        Tokenizer(run.model.path, template=run.model.template),
        seed=run.seed,
        context=context_length(run.model.path),
    )

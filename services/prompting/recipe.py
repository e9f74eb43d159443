"""From a place of the cursor to a prompt: the example, its token ids, and what is wrong with it."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from pipeline.bus.errors import TooLarge
from pipeline.bus.leases import cargo
from pipeline.errors import Unusable
from pipeline.messages import Prompt, Sampling
from pipeline.order import index
from pipeline.protocols import Dataset, Example, Text
from pipeline.run import Run

log = logging.getLogger(__name__)

LONGEST_ERROR = 500


class Encode(Protocol):
    """Text to token ids, int32; raises Unusable for one that has none, which stands `at`."""

    def __call__(self, prompt: Text, *, at: str) -> bytes: ...


class Recipe:
    """The prompts of a run by their cursor, in the seeded order, epoch after epoch.

    An example that cannot be used becomes a prompt with an error and without ids: it is admitted
    like any other, so that the cursor moves past it and its group has a fate.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        run: Run,
        encode: Encode,
        context: int | None = None,
        at: str = "data",
    ) -> None:
        """`context` is the model's, in tokens; `at` is the key of the data set."""
        self._at = at
        self._dataset, self._encode, self._context = dataset, encode, context
        self._seed, self._members = run.seed, run.groups.members
        self._sampling = msgspec.convert(run.sampling, Sampling, from_attributes=True)
        self.end = len(dataset) * run.prompting.epochs

    def __call__(self, cursor: int) -> Prompt:
        """The prompt at the cursor, below `end`; always the same."""
        try:
            return self._usable(cursor)
        except Unusable as fault:
            log.warning("group=%08d reason=%s %s", cursor, fault.reason, fault)
            error = " ".join(f"{fault.reason}: {fault}".split())
            return self._prompt(cursor, b"", error=error[:LONGEST_ERROR])

    def _usable(self, cursor: int) -> Prompt:
        place = index(cursor, size=len(self._dataset), seed=self._seed)
        example = self._dataset[place]
        where = f"{self._at}, example {place}"
        ids = self._encode(example.prompt, at=where)
        self._check_length(where, len(ids) // 4)
        prompt = self._prompt(cursor, ids, task=example.task, reference=_reference(where, example))
        try:
            cargo(prompt, f"group {prompt.group}")
        except TooLarge as exc:
            remedy = "shorten its reference"
            raise Unusable(where, None, reason="too_large", rule=str(exc), remedy=remedy) from exc
        return prompt

    def _check_length(self, where: str, tokens: int) -> None:
        if self._context and tokens >= self._context:
            raise Unusable(
                where,
                None,
                reason="prompt_too_long",
                rule=f"its prompt has {tokens} tokens, the context holds {self._context},"
                " and the answer needs at least one",
                remedy="shorten it",
            )

    def _prompt(
        self,
        cursor: int,
        ids: bytes,
        *,
        task: str = "",
        reference: bytes = b"null",
        error: str = "",
    ) -> Prompt:
        return Prompt(
            group=f"{cursor:08d}",
            seq=cursor,
            ids=ids,
            members=self._members,
            sampling=self._sampling,
            seed=self._seed,
            task=task,
            reference=reference,
            error=error,
        )


def _reference(where: str, example: Example) -> bytes:
    try:
        return msgspec.json.encode(example.reference)
    except (TypeError, ValueError, msgspec.MsgspecError) as exc:
        rule, remedy = f"its reference is no JSON ({exc})", "use texts, numbers, lists and tables"
        raise Unusable(where, str(example.reference), rule=rule, remedy=remedy) from exc

"""The forward passes: contexts into the cache, and one token for every row in use.

Which rows there are, and when a pass runs, is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy as shallow
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.messages import Kept
from pipeline.model.sampling import draw, logprobs, uniforms
from pipeline.model.truncation import Limits, keep, recorded, renormalised
from services.inference.engines.hf.attention import Masks, fold_heads
from services.inference.engines.hf.cache import Pass, SlotCache
from services.inference.engines.hf.rows import Floats, Ints, Rows

_PREFILL_TOKENS = 8192


class Context(NamedTuple):
    """Tokens whose keys and values are to be computed, and the row that starts from them."""

    ids: Ints
    row: int


class Copy(NamedTuple):
    """A row that starts with the first `length` keys and values of another."""

    source: int
    target: int
    length: int


class Drawn(NamedTuple):
    """A token for each row: ids and log-probs [n], and what the rows that truncate drew from."""

    ids: Ints
    logprobs: Floats
    kept: Kept | None


class Passes:
    """A model and its cache. The arrays come from the host; tensors live where the model does."""

    def __init__(
        self, model: PreTrainedModel, *, slots: int, capacity: int, fixed: bool = False
    ) -> None:
        """`fixed`: a decode pass is always over all slots and the whole capacity, and a prefill
        over one context, so that nobody's numbers depend on who else is there.

        Raises ConfigError for a model whose state is no keys and values.
        """
        self._model, self._device, self._fixed = model, model.device, fixed
        self._masks = Masks(model)
        fold_heads(model)
        layers = model.config.get_text_config().num_hidden_layers
        self.cache = SlotCache(layers, slots=slots, capacity=capacity)

    def beside(self, *, slots: int, capacity: int) -> Passes:
        """The same model with a cache of its own."""
        twin = shallow(self)
        twin.cache = SlotCache(len(self.cache.layers), slots=slots, capacity=capacity)
        return twin

    def prefill(self, contexts: list[Context]) -> None:
        """Keys and values of the contexts, several in a pass."""
        for batch in ([c] for c in contexts) if self._fixed else _batches(contexts):
            self._prefill(batch)

    @torch.inference_mode()
    def copy(self, copies: list[Copy]) -> None:
        """Rows that start as others do; all of one source in one go."""
        targets: dict[tuple[int, int], list[int]] = {}
        for copy in copies:
            targets.setdefault((copy.source, copy.length), []).append(copy.target)
        for (source, length), rows in targets.items():
            self.cache.move(self._tensor(np.array([source])), self._tensor(np.array(rows)), length)

    def decode(self, rows: Rows) -> Drawn:
        """One pass over the rows in use and one draw for each.

        A row's last token is not in the cache yet: the pass reads it and stores its keys.
        """
        count = self.cache.slots if self._fixed else rows.count
        last = np.maximum(rows.length[:count] - 1, 0)
        logits = self._forward(rows.ids[np.arange(count), last], last)
        temperature = self._tensor(rows.temperature[:count])
        place = self._tensor(last + 1 - rows.start[:count])
        uniform = uniforms(self._tensor(rows.key[:count]), place)
        logp = logprobs(logits, temperature)
        kept = self._truncate(logp, rows, cut) if len(cut := rows.truncating()) else None
        drawn = draw(logp, temperature, uniform)
        ids, chosen = (column[: rows.count].cpu().numpy() for column in drawn)
        return Drawn(ids, chosen, kept)

    def score(self, ids: Ints) -> list[float]:
        """Log-probs of ids[1:], each given those before it, at temperature 1; no cache is used."""
        row = self._tensor(ids)[None]
        positions = torch.arange(len(ids), device=self._device)[None]
        out = self._model(input_ids=row, position_ids=positions, use_cache=False)
        logits = out.logits[0, :-1]
        logp = logprobs(logits, torch.ones(len(logits), device=self._device))
        chosen: list[float] = logp.gather(-1, row[0, 1:, None])[:, 0].tolist()
        return chosen

    @torch.inference_mode()
    def move(self, source: Ints, target: Ints, length: int) -> None:
        """Rows `source` take the places of rows `target`, up to `length` positions."""
        self.cache.move(self._tensor(source), self._tensor(target), length)

    def _truncate(self, logp: Tensor, rows: Rows, cut: Ints) -> Kept:
        """Renormalise the log-probs [n, V] of rows `cut`, in place; what they are now over."""
        looked_at = np.arange(len(logp)) if self._fixed else cut
        columns = (rows.top_k, rows.top_p, rows.min_p)
        limits = Limits(*(self._tensor(column[looked_at]) for column in columns))
        kept = keep(own := logp[self._tensor(looked_at)], limits)
        at = self._tensor(np.searchsorted(looked_at, cut))
        logp[self._tensor(cut)] = renormalised(own, kept)[at]
        found = recorded(kept[at])
        counts, ids = (column.cpu().numpy().astype("<i4").tobytes() for column in found)
        return Kept(counts=counts, ids=ids)

    def _forward(self, ids: Ints, at: Ints) -> Tensor:
        """Logits [n, V] after one token a row at positions `at` [n]."""
        length = self.cache.capacity if self._fixed else int(at.max()) + 1
        positions = self._tensor(at)
        rows = torch.arange(len(at), device=self._device)
        self.cache.now = Pass(rows=rows, positions=positions, length=length)
        logits: Tensor = self._model(
            input_ids=self._tensor(ids)[:, None],
            position_ids=positions[:, None],
            attention_mask=self._masks.make(positions, length),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        return logits[:, -1]

    def _prefill(self, batch: list[Context]) -> None:
        """Padding stands behind a context, where nothing looks: causal, and overwritten later."""
        width = max(len(context.ids) for context in batch)
        ids = np.zeros((len(batch), width), np.int64)
        for line, context in zip(ids, batch, strict=True):
            line[: len(context.ids)] = context.ids
        self.cache.now = Pass(rows=self._tensor(np.array([context.row for context in batch])))
        self._model.base_model(
            input_ids=self._tensor(ids),
            position_ids=self._tensor(np.arange(width))[None],
            past_key_values=self.cache,
            use_cache=True,
        )

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _batches(contexts: list[Context]) -> Iterator[list[Context]]:
    """By length, so that little is padded; no batch is larger than `_PREFILL_TOKENS`, padded."""
    batch: list[Context] = []
    for context in sorted(contexts, key=lambda c: len(c.ids)):
        if batch and (len(batch) + 1) * len(context.ids) > _PREFILL_TOKENS:
            yield batch
            batch = []
        batch.append(context)
    if batch:
        yield batch

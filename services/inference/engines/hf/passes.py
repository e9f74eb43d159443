"""The forward passes: contexts into the cache, and one token for every row in use.

Which rows there are, and when a pass runs, is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.model.sampling import draw, logprobs, uniforms
from services.inference.engines.hf.attention import Masks, fold_heads
from services.inference.engines.hf.cache import Pass, SlotCache
from services.inference.engines.hf.rows import Floats, Ints, Rows

_PREFILL_TOKENS = 8192


class Context(NamedTuple):
    """Tokens whose keys and values are to be computed, and the rows that start from them."""

    ids: Ints
    rows: list[int]


class Passes:
    """A model and its cache. The arrays come from the host; tensors live where the model does."""

    def __init__(self, model: PreTrainedModel, *, slots: int, capacity: int) -> None:
        """Raises ConfigError for a model whose state is no keys and values."""
        self._model, self._device = model, model.device
        self._masks = Masks(model)
        fold_heads(model)
        layers = model.config.get_text_config().num_hidden_layers
        self.cache = SlotCache(layers, slots=slots, capacity=capacity)

    def prefill(self, contexts: list[Context]) -> None:
        """Keys and values of the contexts, several in a pass, copied to each one's rows."""
        for batch in _batches(contexts):
            self._prefill(batch)

    def decode(self, rows: Rows) -> tuple[Ints, Floats]:
        """One pass over the rows in use and one draw for each: ids and log-probs [n].

        A row's last token is not in the cache yet: the pass reads it and stores its keys.
        """
        last = rows.length[: rows.count] - 1
        logits = self._forward(rows.last_ids(), last)
        temperature = self._tensor(rows.temperature[: rows.count])
        place = self._tensor(last + 1 - rows.start[: rows.count])
        uniform = uniforms(self._tensor(rows.key[: rows.count]), place)
        ids, chosen = draw(logprobs(logits, temperature), temperature, uniform)
        return ids.cpu().numpy(), chosen.cpu().numpy()

    @torch.inference_mode()
    def move(self, source: Ints, target: Ints, length: int) -> None:
        """Rows `source` take the places of rows `target`, up to `length` positions."""
        self.cache.move(self._tensor(source), self._tensor(target), length)

    def _forward(self, ids: Ints, at: Ints) -> Tensor:
        """Logits [n, V] after one token a row at positions `at` [n]."""
        positions, length = self._tensor(at), int(at.max()) + 1
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
        source = [i for i, context in enumerate(batch) for _ in context.rows]
        self.cache.now = Pass(
            rows=self._tensor(np.array([row for context in batch for row in context.rows])),
            source=self._tensor(np.array(source)),
        )
        self._model.base_model(
            input_ids=self._tensor(ids),
            position_ids=self._tensor(np.arange(width))[None],
            past_key_values=self.cache,
            use_cache=True,
        )

    def _tensor(self, values: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
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

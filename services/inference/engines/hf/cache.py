"""Keys and values of all rows, one slot a row, as a transformers `Cache`.

The rows in use are always the first n, so that a decode pass reads a plain slice. Which row
belongs to whom is in `rows`; when a forward pass runs is in `engine`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Pass:
    """Where the keys and values of the current forward pass go; all layers share one.

    Prefill: context i of the batch is written from position 0 of row `rows[i]`.
    Decode: one token a row, at `positions[i]` of row i; the pass attends to `length` positions.
    """

    rows: Tensor
    positions: Tensor | None = None
    length: int = 0


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys [slots, kv_heads, capacity, head_dim] of one layer, and values alike."""

    keys: Tensor
    values: Tensor

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Shapes and dtype are those of the first states that the model computes."""
        self.keys = self._slots(key_states)
        self.values = self._slots(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store the states [B, kv_heads, T, head_dim] of this pass; what it attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        now = self._cache.now
        if now.positions is None:
            width = key_states.shape[2]
            self.keys[now.rows, :, :width] = key_states
            self.values[now.rows, :, :width] = value_states
            return key_states, value_states
        self.keys[now.rows, :, now.positions] = key_states[:, :, 0]
        self.values[now.rows, :, now.positions] = value_states[:, :, 0]
        count = key_states.shape[0]
        return self.keys[:count, :, : now.length], self.values[:count, :, : now.length]

    def move(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the beginnings of rows; one source serves any number of targets."""
        if self.is_initialized:
            self.keys[target, :, :length] = self.keys[source, :, :length]
            self.values[target, :, :length] = self.values[source, :, :length]

    def grow(self, capacity: int) -> None:
        """More positions; what is stored stays."""
        if self.is_initialized:
            self.keys = _grown(self.keys, capacity)
            self.values = _grown(self.values, capacity)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Asked in a prefill only, which starts at 0; a decode pass brings its own mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """0: positions are always given, and a prefill always starts anew."""
        return 0

    def get_max_length(self) -> int:
        return self._cache.capacity

    def _slots(self, states: Tensor) -> Tensor:
        _, heads, _, width = states.shape
        return states.new_zeros((self._cache.slots, heads, self._cache.capacity, width))


class SlotCache(Cache):
    """The cache of all layers. Grows to the longest row that was asked for, never within a pass."""

    def __init__(self, layers: int, *, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.now = Pass(torch.empty(0, dtype=torch.int64))
        self._slot_layers = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self._slot_layers])

    def move(self, source: Tensor, target: Tensor, length: int) -> None:
        """Rows `target` become like rows `source`, or like the only one, up to `length`."""
        for layer in self._slot_layers:
            layer.move(source, target, length)

    def grow(self, capacity: int) -> None:
        self.capacity = capacity
        for layer in self._slot_layers:
            layer.grow(capacity)


def _grown(tensor: Tensor, capacity: int) -> Tensor:
    slots, heads, used, width = tensor.shape
    larger = tensor.new_zeros((slots, heads, capacity, width))
    larger[:, :, :used] = tensor
    return larger

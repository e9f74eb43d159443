"""Weights through the run's own Redis, where machines share no folder and no fast network. † torch

A version is a hash of numbered pieces: some tensors as a safetensors document, cut where it is
long. An index tells how many pieces each part has, and says nothing of a version until it is whole.
What changed since a former version is `delta`'s.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import count, islice
from typing import Annotated, NamedTuple

from msgspec import Meta
from safetensors.torch import load, save
from torch import Tensor

from pipeline.bus.connection import client_of, mask
from pipeline.bus.keys import Keys
from pipeline.bus.scripts import Scripts
from pipeline.protocols import Transport
from pipeline.weights.delta import layered
from pipeline.weights.store import FAULTS, KEPT_VERSIONS, Store

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
_AT_ONCE = 8  # pieces in one round trip, so that others' acts come in between
_PARTIAL = b"partial"
_NAME = re.compile(r"v(\d+)\.e(\d+)")


def build(*, whole_every: Annotated[int, Meta(ge=1)] = 1, run: str, redis: str = "") -> Transport:
    """One version in `whole_every` travels whole, the others as what changed."""
    return layered(partial(RedisTransport, run=run, url=redis), whole_every)


class RedisTransport(Store):
    """Versions of a run lie under `sluice:{RUN}:weights:…`; the newest two stay until the purge.

    What lower epochs left goes, as in `files`.
    """

    def __init__(
        self, *, run: str, url: str, lane: str = "versions", kept: int | None = KEPT_VERSIONS
    ) -> None:
        """Opens nothing."""
        super().__init__(mask(url), kept=kept)
        self._url, self._keys, self._lane = url, Keys(run), lane

    @cached_property
    def _scripts(self) -> Scripts:
        return Scripts(client_of(self._url), self._keys)

    def _write(self, version: int, epoch: int, tensors: dict[str, Tensor]) -> str:
        self._sweep(epoch)
        name = f"v{version}.e{epoch}"
        key = self._keys.weights(self._lane, name)
        try:
            self._scripts.write(("UNLINK", key))
            self._put(name, key, tensors)
        except FAULTS:
            with suppress(*FAULTS):  # if it cannot be told now, whoever sends next removes it
                self._remove(key)
            raise
        return key

    def _put(self, name: str, key: str, tensors: dict[str, Tensor]) -> None:
        """The index names what is there from its first piece on, so that it can be removed."""
        index, numbers, parts = self._keys.weights(self._lane, "index"), count(), []
        for part in _parts(tensors):
            raw = memoryview(save(part))
            pieces = [raw[at : at + PIECE_BYTES] for at in range(0, len(raw), PIECE_BYTES)]
            parts.append(len(pieces))
            rest = iter(pieces)
            while batch := [*islice(rest, _AT_ONCE)]:
                self._scripts.write(
                    ("HSET", index, name, _PARTIAL),
                    *(("HSET", key, next(numbers), piece) for piece in batch),
                )
        self._scripts.write(("HSET", index, name, " ".join(map(str, parts))))

    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        name = location.rpartition(":")[2]
        (found,) = self._scripts.read(("HGET", self._keys.weights(self._lane, "index"), name))
        if found is None or found == _PARTIAL:
            raise OSError("it is not there")
        numbers = count()
        for size in map(int, found.split()):
            raw = b"".join(self._pieces(location, [*islice(numbers, size)]))
            for tensor_name, tensor in load(raw).items():
                yield tensor_name, tensor.clone()

    def _pieces(self, key: str, numbers: list[int]) -> Iterator[bytes]:
        for at in range(0, len(numbers), _AT_ONCE):
            wanted = numbers[at : at + _AT_ONCE]
            pieces = self._scripts.read(*(("HGET", key, number) for number in wanted))
            if None in pieces:
                raise OSError(f"piece {wanted[pieces.index(None)]} is gone")
            yield from pieces

    def _remove(self, location: str) -> None:
        name = location.rpartition(":")[2]
        index = self._keys.weights(self._lane, "index")
        self._scripts.write(("UNLINK", location), ("HDEL", index, name))

    def _is_there(self, location: str) -> bool:
        return self._scripts.read(("EXISTS", location)) == [1]

    def _shown(self, location: str) -> str:
        return f"{location} at {self._place}"

    def _doubt(self, location: str) -> str:
        try:
            names = [left.name for left in self._lying() if left.whole]
        except FAULTS:
            return ""
        if location.rpartition(":")[2] in names:
            return ""
        return f"; there is {', '.join(sorted(names)) or 'nothing of the run'}"

    def _lying(self) -> list[_Left]:
        (index,) = self._scripts.read(("HGETALL", self._keys.weights(self._lane, "index")))
        left = [_left(name.decode(), parts != _PARTIAL) for name, parts in index.items()]
        return sorted(left)

    def _sweep(self, epoch: int) -> None:
        """Before a write: it may be what the server is full of."""
        lying = self._lying()
        spared = self._spared([left for left in lying if left.whole])
        for left in lying:
            is_old = left.epoch < epoch and left not in spared
            if is_old or (left.epoch == epoch and not left.whole):
                log.info("removing %s, left by epoch %d", left.name, left.epoch)
                self._remove(self._keys.weights(self._lane, left.name))


class _Left(NamedTuple):
    epoch: int
    version: int
    whole: bool
    name: str


def _left(name: str, whole: bool) -> _Left:
    found = _NAME.fullmatch(name)
    assert found, "the index has versions only"
    return _Left(int(found[2]), int(found[1]), whole, name)


def _parts(tensors: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Tensors that travel together: one, or several small ones."""
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        part[name] = tensor.contiguous()
        if sum(t.nbytes for t in part.values()) >= PIECE_BYTES:
            yield part
            part = {}
    yield part

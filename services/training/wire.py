"""What ranks say to each other: orders with packs, and replies, from one process to one. † torch

What is done at an order is in `ranks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor

from pipeline.protocols import Pack
from services.training.statistics import Sums

FOR_EVER = timedelta(days=365)
"""How long an order is waited for: rank 0 may wait for groups. It is known to live by its pulse."""


class Column(Struct, frozen=True, array_like=True):
    """A tensor; of whole numbers as int32 where all fit, and once where all are one number.

    Most columns of most packs are the latter: a token takes a third of the bytes.
    """

    dtype: str
    raw: bytes
    shape: tuple[int, ...]
    sent: str


class StepOrder(Struct, frozen=True, tag="step/1"):
    """Step on these packs, which are this rank's."""

    rate: float
    packs: list[list[Column]]


class Order(Struct, frozen=True, tag="order/1"):
    """A call that all ranks make at once."""

    act: Literal["weights", "masters", "save", "snapshot", "load_state", "stop"]
    folder: str = ""


class Reply(Struct, frozen=True, tag="reply/1"):
    """A rank has done its part of a step."""

    finite: bool
    sums: Sums


Message = StepOrder | Order | Reply


class Wire:
    """To be made by all ranks at once; a broken connection raises RuntimeError."""

    def __init__(self) -> None:
        # Beside the group that trains: orders are not to be mixed up with a step's collectives.
        self._group = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self._decoder = msgspec.msgpack.Decoder(Message)

    def send(self, message: Message, rank: int) -> None:
        """Returns when the message is on its way."""
        raw = bytearray(msgspec.msgpack.encode(message))
        dist.send(torch.tensor([len(raw)]), rank, group=self._group)
        dist.send(torch.frombuffer(raw, dtype=torch.uint8), rank, group=self._group)

    def receive(self, rank: int) -> Message:
        """The next message of that rank."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._group)
        raw = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(raw, rank, group=self._group)
        message: Message = self._decoder.decode(raw.numpy().data)
        return message

    def gathered(self, rows: Tensor) -> Tensor:
        """Rows [n, c] of all ranks, by rank, on each of them; called by all at once."""
        size = dist.get_world_size(self._group)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self._group)
        padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(size)]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])


def flattened(packs: Sequence[Pack]) -> list[list[Column]]:
    """Packs as they travel."""
    return [[_column(tensor) for tensor in pack] for pack in packs]


def unflattened(packs: Sequence[Sequence[Column]]) -> list[Pack]:
    """The packs that were sent."""
    return [Pack(*map(_tensor, columns)) for columns in packs]


def _column(tensor: Tensor) -> Column:
    flat = tensor.contiguous().flatten()
    if len(flat) and bool((flat == flat[0]).all()):
        flat = flat[:1]
    if flat.dtype == torch.int64 and len(flat) and int(flat.abs().max()) < 1 << 31:
        flat = flat.int()
    raw = flat.view(torch.uint8).numpy().tobytes()
    return Column(_name(tensor), raw, tuple(tensor.shape), _name(flat))


def _tensor(column: Column) -> Tensor:
    sent, dtype = getattr(torch, column.sent), getattr(torch, column.dtype)
    if not column.raw:
        return torch.zeros(column.shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(column.raw), dtype=sent).to(dtype)
    return flat.expand(math.prod(column.shape)).reshape(column.shape).contiguous()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

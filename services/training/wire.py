"""What ranks say to each other: orders, and replies, from one process to one. † torch

What is done at an order is in `ranks`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeVar

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor

from pipeline.recorded import Place
from services.training.briefs import Brief
from services.training.shares import Share
from services.training.statistics import Sums

FOR_EVER = timedelta(days=365)
"""How long an order is waited for: rank 0 may wait for groups. It is known to live by its pulse."""


class ReadOrder(Struct, frozen=True, tag="read/1"):
    """Read these groups from the bus, and let go of those that were refused."""

    groups: list[str]
    refused: list[str]


class WriteOrder(Struct, frozen=True, tag="write/1"):
    """Write the cargo of these groups to a file of the record at `stem`."""

    groups: list[str]
    stem: str


class StepOrder(Struct, frozen=True, tag="step/2"):
    """Step on this share, which is this rank's."""

    rate: float
    share: Share


class ScoreOrder(Struct, frozen=True, tag="score/1"):
    """Make a forward pass over this sequence, for its log-probs on rank 0."""

    ids: list[int]


class Order(Struct, frozen=True, tag="order/1"):
    """A call that all ranks make at once."""

    act: Literal["weights", "masters", "save", "snapshot", "load_state", "stop"]
    folder: str = ""


class Briefs(Struct, frozen=True, tag="briefs/1"):
    """What a rank has read."""

    briefs: list[Brief]


class Places(Struct, frozen=True, tag="places/1"):
    """Where a rank's cargo is written."""

    places: dict[str, Place]


class Reply(Struct, frozen=True, tag="reply/1"):
    """A rank has done its part of a step."""

    finite: bool
    sums: Sums


M = TypeVar("M", bound=Struct)
Message = ReadOrder | WriteOrder | StepOrder | ScoreOrder | Order | Briefs | Places | Reply


class Wire:
    """To be made by all ranks at once; a broken connection raises RuntimeError."""

    def __init__(self, ranks: int) -> None:
        """Where there is but one it has nobody to talk to, and need not have joined a group."""
        self._ranks = ranks
        if ranks > 1:
            # Beside the group that trains: orders are not to be mixed up with its collectives.
            self._group = dist.new_group(backend="gloo", timeout=FOR_EVER)
        self._decoder = msgspec.msgpack.Decoder(Message)

    def send(self, message: Message, rank: int) -> None:
        """Returns when the message is on its way."""
        raw = bytearray(msgspec.msgpack.encode(message))
        dist.send(torch.tensor([len(raw)]), rank, group=self._group)
        dist.send(torch.frombuffer(raw, dtype=torch.uint8), rank, group=self._group)

    def receive(self, rank: int, kind: type[M]) -> M:
        """The next message of that rank, which is of this kind."""
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._group)
        raw = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(raw, rank, group=self._group)
        message = self._decoder.decode(raw.numpy().data)
        assert isinstance(message, kind), f"rank {rank} has said {message!r:.80}"
        return message

    def gathered(self, rows: Tensor) -> Tensor:
        """Rows [n, c] of all ranks, by rank, on each of them; called by all at once."""
        if self._ranks == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._ranks)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self._group)
        padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self._ranks)]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])

"""Weights from the trainer's GPU into an engine's live model, by NCCL. † torch, vllm

Both halves are vLLM's: its `nccl` back end, with a group of its own for each engine.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from pipeline.errors import ConfigError
from pipeline.weights.direct import Direct, free_port
from pipeline.weights.door import Sender, Session, Source
from pipeline.weights.line import Ask

DEVICE = torch.device("cuda", 0)
"""Of the trainer's first rank, among those that it may see."""


class Nccl(Direct):
    """The trainer and each worker of one engine make a group, which stays until the line is closed.

    Tensors are not packed: vLLM packs on streams that all transfers of a process share, so that one
    engine that hangs would hold up the others until it is given up.
    """

    backend = "nccl"

    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        """Rendezvous at a port of its own; the engine's workers join meanwhile."""
        info = NCCLTrainerInitInfo(
            master_address=self.host,
            master_port=free_port(self.host),
            world_size=1 + ask.workers,
            packed=False,
            rank=0,
        )
        stream = own_stream()
        with torch.cuda.stream(stream):
            engine = WeightTransferTrainerFactory.trainer_init(info, client=session, source=source)
        return _OnStream(engine, stream)

    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the GPU; enqueued on the stream of the transfer."""
        return tensor.to(DEVICE, non_blocking=True)

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """In memory that a GPU reads from directly."""
        return pinned(tensor, self.backend)

    def memory(self, largest: int) -> str:
        return f"a transfer takes {2 * largest} bytes of {DEVICE}, and as much of an engine's"


class _OnStream:
    """vLLM's trainer engine, on a stream of its own: training goes on beside it."""

    def __init__(self, engine: Any, stream: torch.cuda.Stream) -> None:
        self._engine, self._stream = engine, stream

    def send_weights(self) -> None:
        with torch.cuda.stream(self._stream):
            self._engine.send_weights()

    def shutdown(self) -> None:
        """Aborts what hangs in NCCL: its kernels would spin on for ever."""
        self._engine.shutdown()


def own_stream() -> torch.cuda.Stream:
    """Of this transfer alone: neither training nor another engine's waits for it."""
    torch.cuda.set_device(DEVICE)  # of this thread
    return torch.cuda.Stream(DEVICE)  # type: ignore[no-untyped-call]


def pinned(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A copy in page-locked memory. Raises ConfigError where there is no GPU to read it."""
    if not torch.cuda.is_available():
        rule = "moves weights by a GPU of the trainer's, and torch sees none there"
        raise ConfigError("weights", name, rule=rule, remedy="choose shm, files or redis")
    return tensor.pin_memory()

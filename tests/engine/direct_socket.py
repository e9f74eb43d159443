"""vLLM's `nccl` on a machine without a GPU: its own trainer and worker halves, with a socket where
NCCL would be. Registered with vLLM's factories, as outside code would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
)

from pipeline.weights.direct import Direct, free_port
from pipeline.weights.door import Sender, Session, Source
from pipeline.weights.line import Ask, hang_up
from services.inference.engines.vllm import receiver

NAME = "tests_socket"


class Pair:
    """What a PyNcclCommunicator is to vLLM: a broadcast between two, and an end to what hangs."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, tensor: Tensor) -> None:
        self.sock.sendall(tensor.reshape(-1).view(torch.uint8).numpy().data)

    def receive(self, tensor: Tensor) -> None:
        into = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data).cast("B")
        while into:
            size = self.sock.recv_into(into)
            if not size:
                raise ConnectionResetError("the other half of the group is gone")
            into = into[size:]

    def destroy(self) -> None:
        hang_up(self.sock)


@dataclass
class InitInfo(NCCLTrainerInitInfo):
    backend = NAME


class TrainerHalf(NCCLTrainerWeightTransferEngine):  # type: ignore[misc]
    """`send_weights` is vLLM's own: the worker's `update_weights` runs while this broadcasts."""

    before: Callable[[str], None] = staticmethod(lambda _: None)

    @classmethod
    def trainer_init(
        cls, init_info: InitInfo, *, client: Any, source: WeightSource | None = None
    ) -> Self:
        engine = cls(client=client, source=source, packed=False)
        address = (init_info.master_address, init_info.master_port)
        with socket.create_server(address) as server:
            told = {"master_address": address[0], "master_port": address[1]}
            told |= {"rank_offset": 1, "world_size": init_info.world_size}
            joining = threading.Thread(
                target=client.init_weight_transfer_engine, args=(told,), daemon=True
            )
            joining.start()
            server.settimeout(20)
            sock, _ = server.accept()
            joining.join(20)
        engine.model_update_group = Pair(sock)
        return engine

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        for name, tensor in self._checked_iter(source, meta):
            self.before(name)
            self.model_update_group.send(tensor.contiguous())


class WorkerHalf(NCCLWeightTransferEngine):  # type: ignore[misc]
    """Loads what comes, one tensor at a time, by vLLM's own layerwise reload."""

    def init_transfer_engine(self, init_info: Any) -> None:
        address = (init_info.master_address, init_info.master_port)
        self.model_update_group = Pair(socket.create_connection(address, timeout=20))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Without the wait for an accelerator, of which there is none."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        infos = (update_info.names, update_info.dtype_names, update_info.shapes)
        for name, dtype, shape in zip(*infos, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.model_update_group.receive(weight)
            self.model.load_weights([(name, weight)])


class SocketDirect(Direct):
    """As `pipeline.weights.nccl`, with the halves above."""

    backend = NAME
    extension = "direct_socket.Extension"

    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        info = InitInfo(self.host, free_port(self.host), 1 + ask.workers, packed=False, rank=0)
        sender: Sender = WeightTransferTrainerFactory.trainer_init(
            info, client=session, source=source
        )
        return sender

    def prepare(self, tensor: Tensor) -> Tensor:
        return tensor

    def memory(self, largest: int) -> str:
        return f"a transfer takes {largest} bytes"


class Extension(receiver.Extension):
    """By which the workers find the half above."""


WeightTransferEngineFactory.register_engine(NAME, WorkerHalf)
WeightTransferTrainerFactory.register_engine(NAME, TrainerHalf)

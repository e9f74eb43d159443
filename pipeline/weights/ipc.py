"""Weights from the trainer into the live model of an engine on the same GPU, by CUDA's handles of
memory. † torch, vllm

Packing and unpacking are vLLM's. Its sender is not used: that gathers handles over the default
group of all the trainer's ranks, so that each transfer to one engine would be an act of all ranks.
Handles travel as plain values, where vLLM's clients pickle them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer

from pipeline.errors import WeightsError
from pipeline.weights.direct import Direct
from pipeline.weights.door import Sender, Session, Source, size_of
from pipeline.weights.line import Ask
from pipeline.weights.nccl import DEVICE, own_stream, pinned

BUFFER_BYTES = 256 << 20
"""Of the memory that both processes see; more where one tensor is larger."""

Plain = list[Any]


class Ipc(Direct):
    """One buffer at a time is filled by the trainer and copied by the engine, in turns."""

    backend = "sluice_ipc"

    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        """Raises WeightsError where the engine is on another GPU."""
        own = str(torch.cuda.get_device_properties(DEVICE).uuid)
        if ask.devices != (own,):
            there = ", ".join(ask.devices) or "none"
            raise WeightsError(
                f"weights = ipc needs one GPU for both: the trainer is on {own}, engine {ask.boot}"
                f" on {there}; place them on one, or choose nccl"
            )
        session.init_weight_transfer_engine({"packed": True})
        return IpcSender(session, source, own)

    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where it is: what is copied into the buffer may lie in the host's memory."""
        return tensor

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """In memory that a GPU reads from directly."""
        return pinned(tensor, "ipc")

    def memory(self, largest: int) -> str:
        size = max(BUFFER_BYTES, largest)
        return f"a transfer takes {size} bytes of {DEVICE}, and the engine as much again"


class IpcSender:
    """A buffer of each transfer's own, which is freed when the engine has let go of it."""

    def __init__(self, session: Session, source: Source, uuid: str) -> None:
        self._session, self._source, self._uuid = session, source, uuid

    def send_weights(self) -> None:
        session, tensors = self._session, self._source.tensors.values()
        session.start_weight_update()
        with torch.cuda.stream(own_stream()):
            for chunk in packed_ipc_producer(
                iter(self._source),
                gpu_uuid=self._uuid,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=max(BUFFER_BYTES, *(size_of(t) for t in tensors)),
            ):
                session.update_weights(
                    {
                        "names": chunk.names,
                        "dtype_names": chunk.dtype_names,
                        "shapes": chunk.shapes,
                        "tensor_sizes": chunk.tensor_sizes,
                        "ipc_handles": {uuid: plain(h) for uuid, h in chunk.ipc_handle.items()},
                    }
                )
        session.finish_weight_update()
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        """Nothing hangs here but in a call to the engine, which ends by itself."""


class IpcReceiver(IPCWeightTransferEngine):  # type: ignore[misc]
    """vLLM's, for handles that came as plain values."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> WeightTransferUpdateInfo:
        handles = {uuid: rebuilt(h) for uuid, h in update_dict["ipc_handles"].items()}
        return super().parse_update_info(update_dict | {"ipc_handles": handles})


def plain(handle: Sequence[Any]) -> Plain:
    """What `torch.multiprocessing` says of a CUDA tensor of bytes, without its classes."""
    _, size, stride, offset, _, dtype, *rest = handle
    assert dtype == torch.uint8, "vLLM packs bytes"
    return [list(size), list(stride), offset, *rest]


def rebuilt(handle: Plain) -> tuple[Any, ...]:
    """The arguments of `rebuild_cuda_tensor` again."""
    size, stride, offset, *rest = handle
    return (
        torch.Tensor,
        torch.Size(size),
        tuple(stride),
        offset,
        torch.storage.TypedStorage,
        torch.uint8,
        *rest,
    )


WeightTransferEngineFactory.register_engine(Ipc.backend, IpcReceiver)

"""CUDA's handles of memory travel as plain values, which vLLM's half takes as if they were its own.
What they stand for needs a GPU: see `test_vllm_direct_gpu`."""

from __future__ import annotations

import msgspec
import pytest
import torch

from pipeline.weights.ipc import IpcReceiver, plain, rebuilt

pytestmark = pytest.mark.vllm

HANDLE = (
    torch.Tensor,
    torch.Size([1024]),
    (1,),
    0,
    torch.storage.TypedStorage,
    torch.uint8,
    3,
    b"\x00handle",
    2048,
    512,
    False,
    b"counter",
    7,
    b"event",
    True,
)
"""As `torch.multiprocessing` has it of a tensor of bytes on a GPU."""


def test_a_handle_is_the_same_after_it_has_travelled() -> None:
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(plain(HANDLE)))
    assert rebuilt(travelled) == HANDLE


def test_what_vllm_is_told_of_a_chunk_has_its_own_kind_of_handle() -> None:
    receiver = IpcReceiver.__new__(IpcReceiver)
    told = {
        "names": ["a", "b"],
        "dtype_names": ["bfloat16", "float32"],
        "shapes": [[2, 3], [4]],
        "tensor_sizes": [12, 16],
        "ipc_handles": {"GPU-1": plain(HANDLE)},
    }
    info = receiver.parse_update_info(msgspec.msgpack.decode(msgspec.msgpack.encode(told)))
    assert info.ipc_handles == {"GPU-1": HANDLE}
    assert (info.names, info.tensor_sizes) == (["a", "b"], [12, 16])

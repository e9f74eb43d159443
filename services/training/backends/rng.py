"""The random numbers of one process, as a tensor that a state can hold. † torch

Nothing that trains draws any: dropout is off, and seeds of sampling belong to the engines. A loss
of the user's may, and goes on with the numbers that would have come.
"""

from __future__ import annotations

import random

import msgspec
import torch
from msgspec import Struct
from torch import Tensor


class _Numbers(Struct, frozen=True):
    """Where torch's generators (CPU, and each GPU's) and Python's stand."""

    torch: bytes
    devices: tuple[bytes, ...]
    python: tuple[int, ...]
    normal: float | None


def numbers() -> Tensor:
    """Of this process, uint8 [N]."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    _, python, normal = random.getstate()
    stand = _Numbers(_raw(torch.get_rng_state()), tuple(map(_raw, devices)), python, normal)
    return _tensor(msgspec.msgpack.encode(stand))


def restore(raw: Tensor) -> None:
    """This process draws next what the one would have drawn that `numbers` was called in."""
    stand = msgspec.msgpack.decode(_raw(raw), type=_Numbers)
    torch.set_rng_state(_tensor(stand.torch))
    for number, device in enumerate(stand.devices[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(device), number)
    random.setstate((3, stand.python, stand.normal))


def _raw(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

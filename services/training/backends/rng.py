"""The random numbers of one process, as a tensor that a state can hold. † torch

Nothing that trains draws any: dropout is off, and seeds of sampling belong to the engines. A loss
of the user's may, and goes on with the numbers that would have come; the first ones follow from the
run's seed.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from torch import Tensor


class _Numbers(Struct, frozen=True):
    """Where torch's generators (CPU, and each GPU's), Python's and numpy's stand."""

    torch: bytes
    devices: tuple[bytes, ...]
    python: tuple[int, ...]
    normal: float | None
    numpy: bytes = b""  # an earlier release has written none
    numpy_at: tuple[int, int, float] = (0, 0, 0.0)


def begin(seed: int, rank: int) -> None:
    """Before its first step this process draws what follows from the run's seed and its rank."""
    digest = hashlib.blake2b(f"{seed}/{rank}".encode(), digest_size=8).digest()
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, "<u4"))
    torch.manual_seed(int.from_bytes(digest, "little"))


def numbers() -> Tensor:
    """Of this process, uint8 [N]."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    _, python, normal = random.getstate()
    own: Any = np.random.get_state()
    stand = _Numbers(
        torch=_raw(torch.get_rng_state()),
        devices=tuple(map(_raw, devices)),
        python=python,
        normal=normal,
        numpy=own[1].tobytes(),
        numpy_at=own[2:],
    )
    return _tensor(msgspec.msgpack.encode(stand))


def restore(raw: Tensor) -> None:
    """This process draws next what the one would have drawn that `numbers` was called in."""
    stand = msgspec.msgpack.decode(_raw(raw), type=_Numbers)
    torch.set_rng_state(_tensor(stand.torch))
    for number, device in enumerate(stand.devices[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(device), number)
    random.setstate((3, stand.python, stand.normal))
    if stand.numpy:
        np.random.set_state(("MT19937", np.frombuffer(stand.numpy, np.uint32), *stand.numpy_at))


def _raw(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

"""The ranks that train together: who this process is among them, and their process group. † torch

`torchrun` starts them and says so in the environment; a process without it is a world of one. What
they tell each other is in `ranks`, and how they notice that one is gone in `pulse`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

SLOWEST = timedelta(minutes=10)
"""How long a collective waits for the slowest rank. One that is gone is noticed by its pulse."""


class World(NamedTuple):
    """This process's number among `size`, and the device that it computes on."""

    rank: int
    size: int
    device: torch.device


def world() -> World:
    """As the environment says; joins nothing."""
    rank, size = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    if not torch.cuda.is_available():
        return World(rank, size, torch.device("cpu"))
    return World(rank, size, torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))))


def join() -> World:
    """Become a member of the process group; once is enough."""
    me = world()
    if dist.is_initialized():
        return me
    backend = "gloo"
    if me.device.type == "cuda":
        torch.cuda.set_device(me.device)
        backend = "nccl"
    if me.size > 1:
        dist.init_process_group(backend, timeout=SLOWEST)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, and not in its list
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=SLOWEST)
    return me

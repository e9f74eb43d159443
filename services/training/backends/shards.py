"""What a ZeRO optimizer holds in shards, as whole tensors by the parameter's name. † torch

Every method is called by all ranks: tensors come together on each, and rank 0's are what is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import zero
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, nn

from services.training.backends.rng import numbers, restore
from services.training.backends.state import (
    MOMENTS,
    NUMBERS,
    PARAMETER,
    STEP,
    Named,
    Shapes,
    entries,
    parted,
)


class Shards:
    """Of AdamW under ZeRO: stages 1 and 2 (`whole` parameters) or 3."""

    def __init__(
        self,
        optimizer: Any,
        parameters: Mapping[str, nn.Parameter],
        *,
        whole: bool,
        device: torch.device,
    ) -> None:
        """`optimizer` is DeepSpeed's, `parameters` are those that it trains; what the ranks tell
        each other goes by `device`.
        """
        self._optimizer, self._parameters, self._whole = optimizer, dict(parameters), whole
        self._device = device

    @property
    def shapes(self) -> Shapes:
        """Of the parameters, whole."""
        return {name: _shape(parameter) for name, parameter in self._parameters.items()}

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The float32 parameters, one by one."""
        for name, parameter in self._parameters.items():
            yield name, safe_get_full_fp32_param(parameter)

    def entries(self) -> Named:
        """As `state.write` takes them, the moments from the first step on; then every rank's random
        numbers.
        """
        step = next((s[STEP] for s in self._states() if STEP in s), None)
        for name, parameter in self._parameters.items():
            moments: dict[str, Tensor] = {}
            if step is not None:
                moments = {k: safe_get_full_optimizer_state(parameter, k) for k in MOMENTS}
                moments[STEP] = step.clone()
            yield from entries(name, safe_get_full_fp32_param(parameter), moments)
        for rank in range(dist.get_world_size()):
            yield f"{NUMBERS}:{rank}", self._from(rank, numbers()).cpu()

    def fill(self, named: Named) -> None:
        """Take what rank 0 is given; what is not among it is as before the first step.

        Random numbers go to the rank that they are of, where there is one.
        """
        self._forget()
        for key, tensor in self._told(named):
            kind, name = parted(key)
            if kind == NUMBERS:
                if int(name) == dist.get_rank():
                    restore(tensor)
                continue
            parameter = self._parameters[name]
            if kind == PARAMETER:
                self._set_parameter(parameter, tensor)
            elif kind == STEP:
                for state in self._states():
                    state[STEP].copy_(tensor)
            elif self._whole:
                safe_set_full_optimizer_state(parameter, tensor, kind)
            else:
                safe_set_local_optimizer_state(parameter, _part(parameter, tensor), kind)

    def _set_parameter(self, parameter: nn.Parameter, value: Tensor) -> None:
        if self._whole:
            safe_set_full_fp32_param(parameter, value)
            parameter.data.copy_(value)
            return
        safe_set_local_fp32_param(parameter, _part(parameter, value))
        with zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(value)

    def _flats(self) -> list[Tensor]:
        """The float32 masters of this rank, as the optimizer knows them."""
        kind = "single_partition_of_fp32_groups" if self._whole else "fp32_partitioned_groups_flat"
        flats: list[Tensor] = getattr(self._optimizer, kind)
        return flats

    def _states(self) -> list[dict[str, Tensor]]:
        return [self._optimizer.optimizer.state[flat] for flat in self._flats()]

    def _forget(self) -> None:
        """AdamW as it begins: what it would make at its first step."""
        for flat, state in zip(self._flats(), self._states(), strict=True):
            state[STEP] = torch.zeros((), dtype=torch.float32)
            state |= {kind: torch.zeros_like(flat) for kind in MOMENTS}
        if self._whole:  # its views of the moments are made once
            self._optimizer._hp_optimizer_states_linked = False
            self._optimizer._lazy_init_hp_params_optimizer_state()

    def _told(self, named: Named) -> Iterator[tuple[str, Tensor]]:
        """Rank 0's tensors on every rank."""
        given = iter(named)
        while True:
            key, tensor = next(given, ("", torch.empty(0)))
            key = bytes(self._from(0, _spelled(key)).tolist()).decode()
            if not key:
                return
            yield key, self._from(0, tensor)

    def _from(self, rank: int, tensor: Tensor) -> Tensor:
        """That rank's tensor on every rank; what the others give says nothing."""
        own = dist.get_rank() == rank
        dim, dtype = self._agreed(rank, [tensor.dim(), _TYPES.index(tensor.dtype)])
        shape = self._agreed(rank, [*tensor.shape] if own else [0] * dim)
        if own:
            value = tensor.to(self._device).contiguous()
        else:
            value = torch.empty(shape, dtype=_TYPES[dtype], device=self._device)
        if value.numel():
            dist.broadcast(value, rank)
        return value

    def _agreed(self, rank: int, numbers: list[int]) -> list[int]:
        """That rank's numbers, as many as there are everywhere."""
        if not numbers:
            return []
        told = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.broadcast(told, rank)
        agreed: list[int] = told.tolist()
        return agreed


_TYPES = (torch.float32, torch.uint8)


def _spelled(word: str) -> Tensor:
    return torch.tensor([*word.encode()], dtype=torch.uint8)


def _shape(parameter: Any) -> torch.Size:
    """Whole, also where this rank has a part of it."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _part(parameter: Any, value: Tensor) -> Tensor:
    """This rank's part of a whole value, the last one filled up with zeroes."""
    size = parameter.ds_tensor.ds_numel
    flat = value.flatten()
    padded = torch.nn.functional.pad(flat, (0, size * dist.get_world_size() - flat.numel()))
    return padded.narrow(0, size * dist.get_rank(), size)

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

from services.training.backends.state import PARAMETER, Named, entries, parted

STEP, MOMENTS = "step", ("exp_avg", "exp_avg_sq")
KINDS = (PARAMETER, *MOMENTS, STEP)


class Shards:
    """Of AdamW under ZeRO: stages 1 and 2 (`whole` parameters) or 3."""

    def __init__(
        self, optimizer: Any, parameters: Mapping[str, nn.Parameter], *, whole: bool
    ) -> None:
        """`optimizer` is DeepSpeed's, `parameters` are those that it trains."""
        self._optimizer, self._parameters, self._whole = optimizer, dict(parameters), whole

    def entries(self) -> Named:
        """As `state.write` takes them, the moments from the first step on."""
        step = next((s[STEP] for s in self._states() if STEP in s), None)
        for name, parameter in self._parameters.items():
            moments: dict[str, Tensor] = {}
            if step is not None:
                moments = {k: safe_get_full_optimizer_state(parameter, k) for k in MOMENTS}
                moments[STEP] = step.clone()
            yield from entries(name, safe_get_full_fp32_param(parameter), moments)

    def fill(self, named: Named) -> None:
        """Take what rank 0 is given; what is not among it is as before the first step."""
        self._forget()
        for key, tensor in self._told(named):
            kind, name = parted(key)
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
        names = [*self._parameters]
        first = dist.get_rank() == 0
        given = iter(named)
        while True:
            key, tensor = next(given, ("", torch.empty(0))) if first else ("", torch.empty(0))
            kind, name = parted(key)
            index = [KINDS.index(kind), names.index(name)] if key else [-1, -1]
            device = self._flats()[0].device
            which = torch.tensor(index, device=device)
            dist.broadcast(which, 0)
            kind_number, name_number = which.tolist()
            if kind_number < 0:
                return
            kind, name = KINDS[kind_number], names[name_number]
            shape = () if kind == STEP else _shape(self._parameters[name])
            value = tensor.to(device) if first else torch.empty(shape, device=device)
            dist.broadcast(value, 0)
            yield f"{kind}:{name}", value


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

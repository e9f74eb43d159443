"""A trained adapter on vLLM: it alone travels, and is loaded in place of the one that serves.
† torch

vLLM has its own kernels for y = Wx + s B(Ax). Under one name there is one adapter at a time, so
that sequences in flight go on with the new one from the pause on, and none is left behind.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from pipeline import messages
from pipeline.errors import ConfigError, WeightsError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import (
    describe_all,
    fingerprint,
    frozen_parameters,
    named_parameters,
)
from pipeline.model.policy import load_policy
from pipeline.run import Model
from pipeline.weights.origin import Origin
from pipeline.weights.staging import Staged as Received
from pipeline.weights.staging import Staging
from services.inference.engines.vllm.api import LoRARequest
from services.inference.engines.vllm.host import Host
from services.inference.engines.vllm.swaps import AS_LOADED, Ready

NAME, NUMBER = "policy", 1
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM reserves room for, at the least; a rank between two takes that of the higher."""


class Adapter(NamedTuple):
    """A run's adapter as it is before the first step, and the frozen model that it is on.

    `alpha` is such that s = alpha / rank, however the trainer came to it.
    """

    tensors: dict[str, Tensor]
    frozen: tuple[messages.Tensor, ...]
    fingerprint: str
    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def room(self) -> int:
        """The rank that vLLM is to reserve room for."""
        return next(rank for rank in RANKS if rank >= self.rank)


def adapter_of(model: Model) -> Adapter:
    """Loads the model in the host's memory, for this once. Raises ConfigError for an adapter that
    vLLM has no kernels for."""
    policy = load_policy(model, dtype=model.dtype)
    own, frozen = named_parameters(policy), frozen_parameters(policy)
    layers = {n: m for n, m in policy.named_modules() if hasattr(m, "base_layer")}
    forms = {(m.r["default"], float(m.scaling["default"])) for m in layers.values()}
    if len(forms) != 1 or any(".lora_" not in name for name, _ in own):
        rule = "is not low-rank, of one rank and one scale in all layers"
        remedy = 'use = "lora", or the engine hf'
        raise ConfigError("model.adapter", model.adapter, rule=rule, remedy=remedy)
    ((rank, scale),) = forms
    if rank > RANKS[-1]:
        rule = f"vLLM has room for rank {RANKS[-1]} at most"
        raise ConfigError("model.adapter.rank", rank, rule=rule, remedy="lower it")
    return Adapter(
        {name: parameter.data for name, parameter in own},
        describe_all(frozen),
        fingerprint([*own, *frozen]),
        rank,
        scale * rank,
        tuple(sorted({name.rpartition(".")[2] for name in layers})),
    )


class AdapterSwap:
    """Receives adapters in this process, and has vLLM load each from a folder of its own."""

    backend = ""

    def __init__(self, host: Host, origin: Origin, adapter: Adapter) -> None:
        self._host, self._adapter = host, adapter
        self._transport = origin.transport()
        self._staging = Staging(
            {name: (t.dtype, tuple(t.shape)) for name, t in adapter.tensors.items()},
            frozen=adapter.frozen,
            keep=origin.patches,
        )
        self._root = Path(tempfile.mkdtemp(prefix="sluice-adapters-"))
        self._folders: dict[int, Path] = {}
        self._live = AS_LOADED
        self._received: Received | None = None

    @property
    def request(self) -> LoRARequest:
        """What a request names; it loads nothing itself."""
        return LoRARequest(NAME, NUMBER, str(self._folders[self._live]))

    async def open(self) -> None:
        """Load the adapter as it is before the first step."""
        self._folders[AS_LOADED] = self._write(AS_LOADED, self._adapter.tensors)
        await self.load(AS_LOADED)

    def begin(self, manifest: Manifest) -> None:
        """Receive it in the background; what was live before the last load is let go."""
        for version in [v for v in self._folders if v != self._live]:
            shutil.rmtree(self._folders.pop(version), ignore_errors=True)
        self._received = None
        self._staging.begin(manifest, self._transport)

    def error(self) -> str | None:
        """Why the last staging failed, once."""
        return self._staging.error()

    @property
    def ready(self) -> Ready | None:
        """The version that is whole in this process."""
        self._received = self._staging.take() or self._received
        return Ready(self._received.version, self._received.cost) if self._received else None

    async def load(self, version: int) -> None:
        """Under the one name, in place of what is there."""
        if (got := self._received) and got.version == version:
            self._received = None
            self._folders[version] = self._write(version, got.tensors)
        if version not in self._folders:
            raise WeightsError(f"version {version} is not held here any more")
        request = LoRARequest(NAME, NUMBER, str(self._folders[version]), load_inplace=True)
        try:
            taken = await self._host.llm.add_lora(request)
        except Exception as exc:  # what a worker raises comes as vLLM's own kind
            self._host.check()
            raise WeightsError(f"version {version} not loaded: {exc}") from exc
        if not taken:
            raise WeightsError(f"version {version} not loaded: vLLM did not take the adapter")
        self._live = version

    async def differs(self, version: int) -> list[str] | None:
        """None: vLLM keeps adapters stacked and scaled."""
        return None

    def memory(self) -> str:
        """The adapter's, in vLLM and here."""
        size = sum(tensor.nbytes for tensor in self._adapter.tensors.values())
        return (
            f"adapter swap: {size / 1e6:.1f} MB for each of two adapters in this process while one"
            f" is received, and as much on disk under {self._root}"
        )

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _write(self, version: int, tensors: Mapping[str, Tensor]) -> Path:
        folder = self._root / f"v{version}"
        folder.mkdir()
        renamed = {_peft_name(name): tensor.contiguous() for name, tensor in tensors.items()}
        save_file(renamed, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(self._config()))
        return folder

    def _config(self) -> dict[str, Any]:
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self._adapter.rank,
            "lora_alpha": self._adapter.alpha,
            "target_modules": [*self._adapter.targets],
            "bias": "none",
        }


def _peft_name(name: str) -> str:
    """As PEFT writes it, which is what vLLM reads."""
    return f"base_model.model.{name.replace('.default.', '.')}"

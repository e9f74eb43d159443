"""What runs in the process that holds the model: versions staged beside it, and loaded. † torch

vLLM imports this module in each of its workers, before the model is loaded, since it is named as
their extension; that is how the weight transfer gets its name there. The service's side is
`staged`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.model.load import DTYPES
from pipeline.protocols import Held, StagingCost
from pipeline.weights.origin import Origin
from pipeline.weights.staging import Staged, Staging
from services.inference.engines.vllm.guard import watch
from services.inference.engines.vllm.readback import differing
from services.inference.engines.vllm.swaps import AS_LOADED


@dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]
    """From where versions come (an Origin's fields), and what each has: name, dtype, shape."""

    origin: dict[str, Any]
    expected: list[Any]


@dataclass
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which version to load: the staged one, or one that is still held."""

    version: int


class StagedTransfer(WeightTransferEngine[Init, Update]):  # type: ignore[misc]
    """Holds the tensors of what serves, and of the version before it or behind it.

    Those of what serves are kept for a load that fails half-way: then they are loaded again.
    """

    init_info_cls = Init
    update_info_cls = Update
    supports_draft_weight_update = False

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._load_config = vllm_config.load_config
        self._held: dict[int, dict[str, Tensor]] = {}
        self._prints: dict[int, str] = {}
        self._live = AS_LOADED
        self._staged: Staged | None = None

    def init_transfer_engine(self, init_info: Init) -> None:
        """Make the run's transport, and the place to stage in."""
        self._transport = Origin(**init_info.origin).transport()
        self._held, self._staged = {}, None
        self._staging = Staging(
            {name: (DTYPES[dtype], tuple(shape)) for name, dtype, shape in init_info.expected},
            held=self._serving,
        )

    def stage(self, manifest: Manifest) -> None:
        """Receive in the background; what was live before the last load is let go."""
        self._held = {v: held for v, held in self._held.items() if v == self._live}
        self._staged = None
        self._prints = {v: p for v, p in self._prints.items() if v == self._live}
        self._prints[manifest.version] = manifest.fingerprint
        self._staging.begin(manifest, self._transport)

    def staged(self) -> tuple[int, str | None, StagingCost]:
        """The version that is whole here or -1, why the last one failed, and what it took."""
        if found := self._staging.take():
            self._staged = found
        error = self._staging.error()
        if self._staged is None:
            return -1, error, StagingCost()
        return self._staged.version, error, self._staged.cost

    def start_weight_update(self) -> None:
        """Nothing: a load begins and ends in one act, so that none is ever left half-way."""

    def finish_weight_update(self) -> None:
        """Nothing."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """All tensors of one version; on a GPU until they are there."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Update) -> None:
        """Load them, as vLLM loads a checkpoint; raises WeightsError where one was not taken."""
        version = update_info.version
        if self._staged and self._staged.version == version:
            self._held[version] = self._staged.tensors
            self._staged = None
        tensors = self._of(version)
        initialize_layerwise_reload(self.model)
        try:
            loaded = self.model.load_weights(tensors)
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
            if self.device.type == "cpu":
                renew_tied(self.model)
        names = {name for name, _ in self.model.named_parameters()}
        if loaded is not None and (missed := sorted(names - loaded)):
            raise WeightsError(f"vLLM's {', '.join(missed[:3])}: not among the version's tensors")
        self._live = version

    def differs(self, version: int) -> list[str] | None:
        """The live tensors that are not those of the version, if they can be read."""
        held = self._held.get(version)
        return None if held is None else differing(self.model, held)

    def shutdown(self) -> None:
        """A daemon thread ends with the process."""

    def _serving(self) -> Held | None:
        """What serves, for a transport that sends what changed; asked by the staging thread."""
        version = self._live
        if (tensors := self._held.get(version)) is None:
            return None
        return Held(version, self._prints[version], tensors)

    def _of(self, version: int) -> Iterable[tuple[str, Tensor]]:
        if version == AS_LOADED:
            loader: Any = get_model_loader(self._load_config)
            files: Iterable[tuple[str, Tensor]] = loader.get_all_weights(
                self.model_config, self.model
            )
            return files
        if version not in self._held:
            raise WeightsError(f"version {version} is not held here any more")
        return sorted(self._held[version].items())


def renew_tied(model: nn.Module) -> None:
    """Have layers that share a parameter make anew what they make of it.

    vLLM's reload does so where a tensor comes under a layer's own name, and under a tied head's
    none does. On a CPU the head is packed, and would stay that of the old weights.
    """
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)
    for module in (module for tied in owners.values() if len(tied) > 1 for module in tied):
        if isinstance(method := getattr(module, "quant_method", None), QuantizeMethodBase):
            method.process_weights_after_loading(module)


class Extension:
    """What the service may ask of a worker, beside what vLLM has."""

    weight_transfer_engine: StagedTransfer

    def sluice_stage(self, manifest: bytes) -> None:
        """Begin to receive a version."""
        self.weight_transfer_engine.stage(msgspec.msgpack.decode(manifest, type=Manifest))

    def sluice_staged(self) -> tuple[int, str | None, tuple[float, ...]]:
        """The version that is whole, why the last one failed, and what it took."""
        version, error, cost = self.weight_transfer_engine.staged()
        return version, error, tuple(cost)

    def sluice_differs(self, version: int) -> list[str] | None:
        """The live tensors that are not the version's."""
        return self.weight_transfer_engine.differs(version)


WeightTransferEngineFactory.register_engine("sluice", StagedTransfer)
watch()

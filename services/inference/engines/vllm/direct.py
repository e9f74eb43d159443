"""The direct swap as seen from the service: a version goes from the trainer straight into the live
model, so that the pause spans the transfer. † torch

How it travels is the transport's affair. What breaks off half-way leaves no version, and vLLM
cannot load over it: its own state of the load is half-way, too. So the engine ends, and starts
again from a version that is proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import StagingCost
from pipeline.weights.direct import Direct
from pipeline.weights.line import Call
from pipeline.weights.visit import Broken, Caller, Visit
from services.inference.engines.vllm.api import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from services.inference.engines.vllm.host import EngineDied, Host
from services.inference.engines.vllm.swaps import AS_LOADED, Ready

EXTENSION = "services.inference.engines.vllm.receiver.Extension"
KEPT_MANIFESTS = 2


class DirectSwap:
    """Asks the trainer's door in the background, and has it send once the engine is paused."""

    def __init__(self, host: Host, transport: Direct, *, boot: str) -> None:
        self.backend = transport.backend
        self._host, self._transport = host, transport
        world = host.llm.vllm_config.parallel_config.world_size
        self._caller = Caller(boot, world)
        self._visit: Visit | None = None
        self._asking = asyncio.Lock()
        self._manifests: dict[int, Manifest] = {}
        self._wanted = self._live = AS_LOADED
        self._ready: Ready | None = None
        self._error: str | None = None
        self._has_group = False
        self._broken = ""

    async def open(self) -> None:
        """Learn what the workers' devices are called, since a door may have to know."""
        devices: list[str] = await self._host.llm.collective_rpc("sluice_device")
        self._caller = self._caller._replace(devices=tuple(devices))

    def begin(self, manifest: Manifest) -> None:
        """Ask for it in the background; a newer one supersedes it."""
        self._wanted, self._ready, self._error = manifest.version, None, None
        self._manifests[manifest.version] = manifest
        for old in sorted(self._manifests.keys() - {self._live})[:-KEPT_MANIFESTS]:
            del self._manifests[old]
        self._host.spawn(self._ask_for(manifest))

    def error(self) -> str | None:
        """Why the door would not send it, once."""
        error, self._error = self._error, None
        return error

    @property
    def ready(self) -> Ready | None:
        """The version that the door is ready to send."""
        return self._ready

    async def load(self, version: int) -> None:
        """Have it sent. Raises WeightsError where nothing was touched, or a transfer broke off;
        after the latter it raises EngineDied for whatever is to be loaded next.
        """
        if self._broken:
            self._host.died(WeightsError(self._broken))
            raise EngineDied(
                f"{self._broken}; this engine holds no version any more: it ends, and starts again"
                " from one that is proven"
            )
        if version == self._live:  # nothing has been touched since
            return
        manifest = self._manifests.get(version)
        if manifest is None:
            raise WeightsError(f"version {version} is in the model's files only, not at the door")
        try:
            async with self._asking:
                await asyncio.to_thread(self._fetch, manifest)
        except Broken as exc:
            self._broken = str(exc)
            self._hang_up()
            raise
        except WeightsError:
            self._hang_up()
            raise
        finally:
            self._ready = None
        self._live = version

    async def differs(self, version: int) -> list[str] | None:
        """None: nothing was kept that the live tensors could be held against."""
        return None

    def memory(self) -> str:
        """What a transfer takes here; the trainer says its own part."""
        return (
            f"direct swap by {self.backend}: no second version is held; a transfer takes its"
            " buffers on each worker's device, which gpu_memory_utilization must leave free"
        )

    @property
    def request(self) -> None:
        """None: requests run on the model itself."""

    def close(self) -> None:
        """Let go of the door."""
        self._wanted = AS_LOADED
        self._hang_up()

    async def _ask_for(self, manifest: Manifest) -> None:
        async with self._asking:
            if manifest.version != self._wanted:
                return
            try:
                await asyncio.to_thread(self._ask, manifest)
            except Exception as exc:  # the engine's thread hears it; the old version serves on
                self._hang_up()
                if manifest.version == self._wanted:
                    self._error = f"version {manifest.version} not staged: {exc}"
                return
            if manifest.version == self._wanted:
                size = sum(_bytes(entry.dtype, entry.shape) for entry in manifest.tensors)
                self._ready = Ready(manifest.version, StagingCost(num_bytes=size))

    def _ask(self, manifest: Manifest) -> Visit:
        """In a thread of its own, as all that waits for the door."""
        if self._visit is not None and self._visit.location != manifest.location:
            self._hang_up()
        if self._visit is None:
            visit = self._transport.visit(manifest.location, self._caller, self._perform)
            self._visit = visit
        self._visit.ask(manifest)
        return self._visit

    def _fetch(self, manifest: Manifest) -> None:
        visit = self._visit
        if manifest.version != self._wanted or visit is None:  # one that was live before
            visit = self._ask(manifest)
        visit.fetch(manifest)

    def _hang_up(self) -> None:
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.close()

    def _perform(self, call: Call) -> None:
        """One act of vLLM's, within the transport's time; raises what that raises."""
        future = asyncio.run_coroutine_threadsafe(self._act(call), self._host.loop)
        try:
            future.result(self._transport.timeout_seconds)
        except NotYet as exc:
            if future.done():
                raise
            seconds = self._transport.timeout_seconds
            raise WeightsError(f"{call.act} did not end within {seconds:g} s") from exc

    async def _act(self, call: Call) -> None:
        llm = self._host.llm
        act: Coroutine[Any, Any, None]
        match call.act:
            case "init":
                if self._has_group:  # with another door, or on a line that is gone
                    await llm.shutdown_weight_transfer_engine()
                self._has_group = True
                act = llm.init_weight_transfer_engine(WeightTransferInitRequest(call.info))
            case "start":
                act = llm.start_weight_update()
            case "update":
                act = llm.update_weights(WeightTransferUpdateRequest(call.info))
            case "finish":
                act = llm.finish_weight_update()
        await act


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = 4 if dtype == "float32" else 2
    for length in shape:
        size *= length
    return size

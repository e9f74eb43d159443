"""The staged swap as seen from the service: what is asked of vLLM's workers. † torch

What they do is in `worker`. A version is received, verified and whole in their memory before a
pause is made for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import StagingCost
from pipeline.weights.origin import Origin
from services.inference.engines.vllm.api import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from services.inference.engines.vllm.expected import Entry
from services.inference.engines.vllm.host import Host
from services.inference.engines.vllm.swaps import Ready

LOOK_SECONDS = 0.02


class Staged:
    """Each worker receives for itself, and stages in the host's memory."""

    backend = "sluice"

    def __init__(self, host: Host, origin: Origin, expected: Sequence[Entry]) -> None:
        self._host, self._origin, self._expected = host, origin, expected
        self._wanted = -1
        self._ready: Ready | None = None
        self._error: str | None = None

    async def open(self) -> None:
        """Tell the workers what to expect, and from where."""
        told = {"origin": self._origin._asdict(), "expected": [[*e] for e in self._expected]}
        await self._host.llm.init_weight_transfer_engine(WeightTransferInitRequest(told))

    def begin(self, manifest: Manifest) -> None:
        """Have every worker receive it; a newer one supersedes it."""
        self._wanted, self._ready, self._error = manifest.version, None, None
        self._host.spawn(self._stage(manifest))

    def error(self) -> str | None:
        """Why the last staging failed, once."""
        error, self._error = self._error, None
        return error

    @property
    def ready(self) -> Ready | None:
        """The version that every worker has whole."""
        return self._ready

    async def load(self, version: int) -> None:
        """Each worker loads what it holds; raises WeightsError where one could not."""
        llm, self._ready = self._host.llm, None
        try:
            await llm.start_weight_update()
            await llm.update_weights(WeightTransferUpdateRequest({"version": version}))
            await llm.finish_weight_update()
        except Exception as exc:  # what a worker raises comes as vLLM's own kind
            self._host.check()
            raise WeightsError(f"version {version} not loaded: {exc}") from exc

    async def differs(self, version: int) -> list[str] | None:
        """As each worker finds it."""
        found: list[list[str] | None] = await self._ask("sluice_differs", version)
        if any(one is None for one in found):
            return None
        return sorted({name for one in found if one for name in one})

    def memory(self) -> str:
        """Tensors of the version that serves, and of one other."""
        sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
        one = sum(_elements(e.shape) * sizes.get(e.dtype, 4) for e in self._expected)
        return (
            f"staged swap: {one / 1e6:.1f} MB for the version that serves and as much for the one"
            " before it or behind it, in the host's memory of each worker, beside the live model"
        )

    @property
    def request(self) -> None:
        """None: all weights travel."""
        return None

    def close(self) -> None:
        """The workers end with vLLM."""

    async def _stage(self, manifest: Manifest) -> None:
        try:
            await self._ask("sluice_stage", msgspec.msgpack.encode(manifest))
            while manifest.version == self._wanted and self._ready is None and not self._error:
                await asyncio.sleep(LOOK_SECONDS)
                self._hear(manifest.version, await self._ask("sluice_staged"))
        except Exception as exc:  # the engine's thread hears it; a dead process it finds by itself
            if manifest.version == self._wanted:
                self._error = f"version {manifest.version} not staged: {exc}"

    def _hear(self, version: int, found: list[Any]) -> None:
        """Of each worker: the version it has whole, its error, and the cost."""
        if version != self._wanted:
            return
        errors = [error for _, error, _ in found if error]
        if errors:
            self._error = errors[0]
        elif all(ready == version for ready, _, _ in found):
            costs = [StagingCost(*cost) for _, _, cost in found]
            self._ready = Ready(version, max(costs))

    async def _ask(self, act: str, *args: object) -> list[Any]:
        answers: list[Any] = await self._host.llm.collective_rpc(act, args=args)
        return answers


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

"""How a version comes into the live model: what every way of swapping must do. Torch-free.

`staged` receives it beside what serves, and loads it in a pause. When that pause is, and what
becomes of the sequences in flight, is `engine`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pipeline.messages import Manifest
from pipeline.protocols import StagingCost

if TYPE_CHECKING:
    from services.inference.engines.vllm.api import LoRARequest

AS_LOADED = -1
"""Stands for the weights in the model's own files, which vLLM started with."""


class Ready(NamedTuple):
    """A version that a pause may be made for."""

    version: int
    cost: StagingCost


class Loader(Protocol):
    """Brings versions into the model. Its coroutines run on vLLM's thread, the rest on any."""

    backend: str
    """vLLM's name of the weight transfer."""

    async def open(self) -> None:
        """Once, after vLLM has started."""

    def begin(self, manifest: Manifest) -> None:
        """Get ready to load this version. What was live before the last load may be let go."""

    def error(self) -> str | None:
        """Why the last one could not be made ready, once."""

    @property
    def ready(self) -> Ready | None:
        """What could be loaded now."""

    async def load(self, version: int) -> None:
        """Into the live model, in a pause: all tensors, or it raises WeightsError.

        Of what is ready, or of a version that was live before and is not let go; AS_LOADED: from
        the model's files. After it raised nothing may run until another load has not.
        """

    async def differs(self, version: int) -> list[str] | None:
        """The live tensors that are not this version's, by name, where vLLM keeps them as they
        came; None where that cannot be read."""

    def memory(self) -> str:
        """What it takes in memory, for the log."""

    @property
    def request(self) -> LoRARequest | None:
        """The adapter that a request is to name, where one is trained."""

    def close(self) -> None:
        """No more versions."""

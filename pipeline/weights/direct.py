"""What the transports `nccl` and `ipc` have in common: weights go from the trainer's process
straight into an engine's live model, by a back end of vLLM's.

No version is received beside the one that serves: the pause spans the transfer, and what breaks off
half-way leaves no version at all. In exchange an engine needs no room for a second one. Engines
pull: each asks the trainer's door when it is ready, and none waits for another.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from pipeline import plugins
from pipeline.errors import ConfigError, WeightsError
from pipeline.families import ENGINES
from pipeline.messages import Manifest
from pipeline.protocols import Held, Transport
from pipeline.run import Run
from pipeline.weights.door import KEPT_VERSIONS, Door, Sender, Session, Source, own_address, size_of
from pipeline.weights.line import Ask
from pipeline.weights.visit import Caller, Perform, Visit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class Direct(ABC):
    """Both ends: `send`, `drop` and `close` are the trainer's, `visit` an engine's."""

    backend: ClassVar[str]
    """Under which name a worker of vLLM's finds the receiving half."""
    extension: ClassVar[str] = ""
    """A worker extension whose module registers that half; empty: vLLM has it, or Sluice."""

    def __init__(
        self,
        *,
        run: str,
        redis: str = "",
        host: str = "",
        port: Annotated[int, Meta(ge=0, le=65535)] = 0,
        timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0,
    ) -> None:
        """`host` and `port` are where the trainer listens and engines reach it; by default the
        address that leads to the run's Redis, and any free port. Whoever is silent for longer than
        `timeout_seconds` is taken for dead, and a whole transfer must fit. Opens nothing.
        """
        self._run, self._redis = run, redis
        self._host, self._port, self.timeout_seconds = host, port, timeout_seconds
        self._door: Door | None = None

    @abstractmethod
    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        """Make the group with one engine; raises WeightsError where that cannot be."""

    @abstractmethod
    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor where it is sent from."""

    @abstractmethod
    def memory(self, largest: int) -> str:
        """What a transfer takes for a while, given the bytes of the largest tensor."""

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is kept, until it is sent for the last time."""
        return tensor

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, torch.Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        """Keep the version for those who ask, and return at once; the door's address."""
        held = {name: self.hold(tensor) for name, tensor in tensors}
        if self._door is None:
            self._door = self._opened()
            total, largest = size_of(*held.values()), max(map(size_of, held.values()), default=0)
            log.info(
                "door=%s epoch=%d keeps %d versions of %d bytes in host memory; %s",
                self._door.location.rpartition("/")[0],
                epoch,
                KEPT_VERSIONS,
                total,
                self.memory(largest),
            )
        self._door.keep(version, held)
        return self._door.location

    def receive(
        self, manifest: Manifest, held: Held | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Raises WeightsError: nothing is received beside a live model."""
        raise WeightsError(f"weights = {self.backend} goes into a live model of vLLM's alone")

    def drop(self, version: int) -> None:
        """The version cannot be had any more."""
        if self._door is not None:
            self._door.drop(version)

    def close(self) -> None:
        """Hang up on all engines."""
        if self._door is not None:
            self._door.close()
        self._door = None

    def visit(self, location: str, caller: Caller, perform: Perform) -> Visit:
        """An engine's line to the door at a manifest's location; raises WeightsError."""
        return Visit(location, caller, perform, seconds=self.timeout_seconds)

    @property
    def host(self) -> str:
        """Under which engines reach this process."""
        return self._host or own_address(self._redis)

    def _opened(self) -> Door:
        return Door(
            self.open_sender,
            self.prepare,
            address=(self.host, self._port),
            seconds=self.timeout_seconds,
        )


def check_fits(run: Run, transport: Transport) -> None:
    """Raises ConfigError where a direct transport meets an engine that has no live model of vLLM's,
    or an adapter, which is less than a model.
    """
    if not isinstance(transport, Direct):
        return
    name = plugins.name_of(run.weights, "weights")
    engine = plugins.name_of(run.inference.engine, "inference.engine")
    if engine in ENGINES and engine != "vllm":
        rule = f"goes straight into a live model of vLLM's, and inference.engine is {engine}"
        raise ConfigError("weights", name, rule=rule, remedy="use engine vllm, or weights = shm")
    if run.model.adapter is not None:
        rule = "moves whole models, and with model.adapter only the adapter travels"
        raise ConfigError("weights", name, rule=rule, remedy="choose shm, files or redis")


def free_port(host: str) -> int:
    """A port that nobody listens at now."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])

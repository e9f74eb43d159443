"""An engine's side of the weights, without its loop: live parameters that follow announcements."""

import time

import torch
from torch import Tensor, nn

from pipeline.messages import Manifest
from pipeline.model.fingerprint import Named
from pipeline.protocols import Transport
from pipeline.weights.publisher import Publisher
from services.inference.engines.hf.flip import LiveWeights

SECONDS = 20.0


class Receiver:
    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self.model, self.transport = model, transport
        self.live = LiveWeights(model)

    def follow(self, manifest: Manifest) -> str:
        """Stage and flip; why that failed, or nothing."""
        self.live.stage(manifest, self.transport)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self.live.swap() is not None:
                return ""
            if error := self.live.error():
                return error
            time.sleep(0.001)
        raise AssertionError("neither staged nor refused")

    def values(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


def published(
    transport: Transport,
    version: int,
    named: Named,
    *,
    epoch: int = 1,
    dtype: torch.dtype | None = None,
) -> Manifest:
    """What is announced of the version."""
    announced: list[Manifest] = []
    publisher = Publisher(announced.append, transport, epoch=epoch, dtype=dtype)
    publisher.publish(version, version, named)
    publisher.flush()
    return announced[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

"""The trainer's side of a direct swap, in the process of a test, and an engine that follows it.
Weights emit one token per version, so that spans are checked by content."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any, cast

import torch
from engine_models import plain_logprobs
from engine_work import tokens, versions
from vllm_engines import planted_for_vllm

from pipeline.messages import Canary, Completion, Manifest
from pipeline.model.fingerprint import describe_all, fingerprint_of, named_parameters
from pipeline.protocols import Transport
from pipeline.weights.direct import Direct
from pipeline.weights.door import Sender
from services.inference.engines.vllm.engine import VllmEngine

SECONDS = 60.0
CANARY = [3, 1, 4, 1, 5]
LAST = "model.norm.weight"
"""The tensor that is sent last."""


class Refused(Exception):
    """What a staging error says."""


class Trainer:
    """Publishes; `before` is asked in its process before a start, and before each tensor."""

    def __init__(self, transport: Direct, dtype: torch.dtype = torch.float32) -> None:
        self.before: Callable[[str], object] = lambda _: None
        self.transport, self.version, self.dtype = transport, 0, dtype

    def watch(self, sender: Sender) -> Sender:
        """The sender, which asks `before`."""
        cast(Any, sender).before = lambda what: self.before(what)
        return _Watched(sender, self)

    def publish(self, token: int | None = None) -> Manifest:
        """The next version, which emits its own number if it is not told another token."""
        self.version += 1
        model = planted_for_vllm(self.version if token is None else token)
        named = [(n, t.detach().to(self.dtype, copy=True)) for n, t in named_parameters(model)]
        entries = describe_all(named)
        found = plain_logprobs(model, CANARY[:1], CANARY[1:]).tolist()
        return Manifest(
            version=self.version,
            step=self.version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=self.transport.send(self.version, named, epoch=1),
            tensors=entries,
            canary=Canary(ids=array("i", CANARY).tobytes(), logprobs=array("f", found).tobytes()),
        )


class _Watched:
    def __init__(self, sender: Sender, trainer: Trainer) -> None:
        self.sender, self.trainer = sender, trainer

    def send_weights(self) -> None:
        self.trainer.before("start")
        self.sender.send_weights()

    def shutdown(self) -> None:
        self.sender.shutdown()


def follow(engine: VllmEngine, manifest: Manifest) -> list[Completion]:
    """Take the version, decoding meanwhile; what finished until then. Raises Refused."""
    engine.stage(manifest, cast(Transport, None))  # it makes its own, from the run's origin
    done: list[Completion] = []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if engine.flip() is not None:
            return done
        if error := engine.staging_error():
            raise Refused(error)
        done += engine.step()
        if not engine.busy:
            time.sleep(0.005)
    raise AssertionError("neither taken nor refused")


def decode(engine: VllmEngine, num_steps: int) -> list[Completion]:
    """What finished in so many steps."""
    return [done for _ in range(num_steps) for done in engine.step()]


def assert_exact(completions: list[Completion]) -> None:
    """Every token is the one that its version emits."""
    assert completions
    for completion in completions:
        assert tokens(completion) == versions(completion)

"""Faults on the way of a version: the old one serves on, the error is named, the next succeeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from engine_models import plain_logprobs, tiny
from engine_work import MemoryTransport, drain, logprobs, publish, settle, tokens, versions, work
from engine_work import flip_to as adopt
from torch import Tensor

from pipeline.messages import Manifest
from pipeline.model.fingerprint import named_parameters
from pipeline.protocols import Held
from services.inference.engines.hf.engine import HfEngine

NAME = "model.norm.weight"
Damage = Callable[[Tensor], Tensor]


class Cut(MemoryTransport):
    """The sender dies after two tensors."""

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        for number, pair in enumerate(super().receive(manifest, held)):
            if number == 2:
                raise ConnectionResetError("the sender is gone")
            yield pair


def engine_of(**options) -> HfEngine:
    engine = HfEngine(tiny(seed=0), **{"boot": "b", "end_ids": frozenset(), **options})
    adopt(engine, 0)
    return engine


def lacking(transport: MemoryTransport) -> Manifest:
    manifest = publish(transport, 1, tiny(seed=1))
    del transport.sent[1][NAME]
    return manifest


def nothing(transport: MemoryTransport) -> Manifest:
    """C025: acknowledged, and not written."""
    manifest = publish(transport, 1, tiny(seed=1))
    transport.sent[1] = {name: torch.zeros_like(t) for name, t in transport.sent[1].items()}
    return manifest


def changed(damage: Damage, *, told: bool) -> Callable[[MemoryTransport], Manifest]:
    """One tensor is another, on the way or already at the sender."""

    def send(transport: MemoryTransport) -> Manifest:
        model = tiny(seed=1)
        if told:
            with torch.no_grad():
                model.model.norm.weight = torch.nn.Parameter(damage(model.model.norm.weight))
            return publish(transport, 1, model)
        manifest = publish(transport, 1, model)
        transport.sent[1][NAME] = damage(transport.sent[1][NAME])
        return manifest

    return send


FAULTS = {
    "missing": (lacking, MemoryTransport, NAME),
    "unwritten": (nothing, MemoryTransport, "checksum"),
    "checksum": (changed(lambda t: t + 2**-20, told=False), MemoryTransport, NAME),
    "shape": (changed(lambda t: t[:-1].clone(), told=True), MemoryTransport, f"{NAME}: shape"),
    "dtype": (changed(lambda t: t.half(), told=True), MemoryTransport, f"{NAME}: dtype"),
    "nan": (changed(lambda t: t * torch.nan, told=True), MemoryTransport, "not all values"),
    "sender_killed": (lambda t: publish(t, 1, tiny(seed=1)), Cut, "the sender is gone"),
}


@pytest.mark.parametrize(("send", "transport", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_C025_C026_C027_the_old_version_serves_on_and_the_next_one_succeeds(
    send: Callable[[MemoryTransport], Manifest], transport: type[MemoryTransport], message: str
) -> None:
    engine, faulty = engine_of(), transport()
    engine.add(work(max_tokens=12))
    engine.step()
    before = engine.fingerprint()
    engine.stage(send(faulty), faulty)
    settle(engine)
    assert engine.flip() is None
    error = engine.staging_error()
    assert error and error.startswith("version 1 not staged: ") and message in error
    assert engine.staging_error() is None
    assert (engine.version, engine.fingerprint()) == (0, before)
    for _ in range(4):
        engine.step()
    adopt(engine, 2, tiny(seed=2))
    for completion in drain(engine).values():
        assert versions(completion) == [0] * 5 + [2] * 7
        plain = plain_logprobs(tiny(seed=0), [1, 2, 3], tokens(completion))
        gaps = (torch.tensor(logprobs(completion)) - plain).abs()
        assert gaps[:5].max().item() <= 1e-4 < gaps[5:].max().item()


def test_of_two_versions_at_once_a_fault_of_the_first_hides_nothing_of_the_second() -> None:
    engine, faulty, sound = engine_of(), MemoryTransport(), MemoryTransport()
    engine.add(work(max_tokens=12))
    engine.step()
    engine.stage(lacking(faulty), faulty)
    engine.stage(publish(sound, 2, tiny(seed=2)), sound)
    settle(engine)
    flip = engine.flip()
    assert flip and flip.version == 2
    live = {name: t.clone() for name, t in named_parameters(engine._passes._model)}
    assert all(torch.equal(live[name], t) for name, t in sound.sent[2].items())

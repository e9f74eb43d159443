"""The direct swap with a real vLLM engine: what `nccl` does but for NCCL itself, for which a socket
stands in (`direct_socket`). Weights emit one token per version: spans are checked by content."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from direct_socket import Pair, SocketDirect
from direct_trainer import (
    CANARY,
    LAST,
    SECONDS,
    Refused,
    Trainer,
    assert_exact,
    decode,
    follow,
)
from engine_work import by_member, drain, tokens, work
from vllm_engines import planted_for_vllm

from pipeline.messages import Completion, Manifest
from pipeline.run import Model
from pipeline.weights.door import Sender, Session, Source
from pipeline.weights.line import Ask, Call
from pipeline.weights.origin import Origin
from pipeline.weights.visit import Caller
from services.inference.engines.vllm.build import start
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.host import EngineDied

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(300)]

TIMEOUT = 3.0


class Watched(SocketDirect):
    """Its senders ask a trainer's `before`."""

    trainer: Trainer

    def open_sender(self, ask: Ask, session: Session, source: Source) -> Sender:
        return self.trainer.watch(super().open_sender(ask, session, source))


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    transport = Watched(run="run", timeout_seconds=TIMEOUT)
    made = transport.trainer = Trainer(transport)
    yield made
    made.transport.close()


@pytest.fixture(autouse=True)
def calm(trainer: Trainer) -> Iterator[None]:
    yield
    trainer.before = lambda _: None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted")
    planted_for_vllm(0).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def starting(folder: Path) -> Iterator[Callable[[str], VllmEngine]]:
    """Starts an engine of this name, once."""
    made: dict[str, VllmEngine] = {}

    def begin(boot: str) -> VllmEngine:
        if boot in made:
            return made[boot]
        spec = {"use": "direct_socket:SocketDirect", "timeout_seconds": TIMEOUT}
        engine = start(
            Model(path=str(folder), dtype="float32"),
            boot=boot,
            origin=Origin(spec, "run"),
            swap="keep",
            slots=16,
            max_length=None,
            args={},
            ends=frozenset(),
        )
        made[boot] = engine
        return engine

    yield begin
    for engine in made.values():
        engine.close()


@pytest.fixture(scope="module")
def engine(starting: Callable[[str], VllmEngine], trainer: Trainer) -> VllmEngine:
    """Serves a version of the trainer's; every test leaves it so."""
    made = starting("inference-1")
    follow(made, trainer.publish())
    return made


def test_twelve_flips_under_load_mislabel_no_token(engine: VllmEngine, trainer: Trainer) -> None:
    engine.add(work("a", members=8, max_tokens=200))
    done: list[Completion] = []
    first = engine.version
    for _ in range(12):
        done += decode(engine, 5)
        done += follow(engine, trainer.publish())
    done += drain(engine).values()
    assert len(by_member(done)) == 8
    assert_exact(done)
    assert all(len(tokens(completion)) == 200 for completion in done)
    assert any({s.version for s in c.spans} > {first, first + 1, first + 2} for c in done)


def test_live_weights_are_proven_by_the_canary(engine: VllmEngine, trainer: Trainer) -> None:
    manifest = trainer.publish()
    follow(engine, manifest)
    assert engine.fingerprint() == manifest.fingerprint
    false, other = trainer.publish(token=CANARY[1]), trainer.publish(token=9)
    follow(engine, Manifest(**{**_fields(other), "canary": false.canary}))
    assert "nats off the trainer's" in engine.fingerprint()
    follow(engine, trainer.publish())


def test_a_wrong_flip_is_undone_by_the_door_that_keeps_the_former_version(
    engine: VllmEngine, trainer: Trainer
) -> None:
    former = trainer.publish()
    follow(engine, former)
    engine.add(work("r", members=2, max_tokens=60))
    done = decode(engine, 5)
    done += follow(engine, trainer.publish())
    done += decode(engine, 5)
    assert engine.revert() > 0
    assert engine.version == former.version
    done += drain(engine).values()
    assert_exact(done)
    assert {span.version for c in done for span in c.spans} == {former.version}
    follow(engine, trainer.publish())


def test_a_door_that_is_silent_before_it_touched_anything_costs_nothing_but_a_pause(
    engine: VllmEngine, trainer: Trainer
) -> None:
    served, over = engine.version, threading.Event()
    engine.add(work("s", members=4, max_tokens=120))
    done = decode(engine, 5)
    trainer.before = lambda what: over.wait(SECONDS)
    with pytest.raises(Refused, match=r"door at 127.0.0.1:\d+ said nothing for 3 s"):
        done += follow(engine, trainer.publish())
    over.set()
    trainer.before = lambda _: None
    assert engine.version == served
    done += decode(engine, 5)
    done += follow(engine, trainer.publish())
    done += drain(engine).values()
    assert len(by_member(done)) == 4
    assert_exact(done)


def test_a_version_superseded_while_it_is_sent_is_whole_and_the_next_follows(
    engine: VllmEngine, trainer: Trainer
) -> None:
    newer: list[Manifest] = []

    def supersede(what: str) -> None:
        if what != "start" and not newer:
            newer.extend((trainer.publish(), trainer.publish()))

    manifest = trainer.publish()
    engine.add(work("n", members=4, max_tokens=120))
    done = decode(engine, 3)
    trainer.before = supersede
    done += follow(engine, manifest)
    assert engine.version == manifest.version
    done += decode(engine, 3)
    with pytest.raises(Refused, match=r"is not kept, only \[\d+, \d+\] are"):
        follow(engine, Manifest(**{**_fields(newer[1]), "version": newer[1].version + 100}))
    done += follow(engine, newer[1])
    done += drain(engine).values()
    assert_exact(done)


def test_a_trainer_that_hangs_half_way_ends_the_engine_which_starts_again_from_a_proven_version(
    engine: VllmEngine, trainer: Trainer, starting: Callable[[str], VllmEngine]
) -> None:
    proven, over = trainer.publish(), threading.Event()
    follow(engine, proven)
    engine.add(work("h", members=2, max_tokens=100))
    done = decode(engine, 5)
    trainer.before = lambda what: over.wait(SECONDS) if what == LAST else None
    newest = trainer.publish()
    with pytest.raises(EngineDied, match=rf"version {newest.version} broke off half-way: .*3 s"):
        follow(engine, newest)
    over.set()
    trainer.before = lambda _: None
    assert engine.version == proven.version
    assert {s.version for c in (*done, *engine.prefixes()) for s in c.spans} == {proven.version}
    engine.close()
    again = starting("inference-2")
    for manifest in (proven, newest):
        follow(again, manifest)
        assert again.fingerprint() == manifest.fingerprint
        again.add(work("h", members=2, max_tokens=5))
        assert_exact([*drain(again).values()])


def test_an_engine_killed_in_mid_transfer_holds_up_neither_trainer_nor_others(
    trainer: Trainer, starting: Callable[[str], VllmEngine]
) -> None:
    """The last of this module: it kills the engine that the test before has started."""
    victim, killed = starting("inference-2"), threading.Event()

    def kill(what: str) -> None:
        if what == LAST and not killed.is_set():
            killed.set()
            for process in _processes_of(victim):
                os.kill(process, signal.SIGKILL)

    trainer.before = kill
    with pytest.raises((EngineDied, Refused)):
        follow(victim, trainer.publish())
    assert killed.is_set()
    started = time.monotonic()
    newest = trainer.publish()
    assert time.monotonic() - started < 1
    acts: list[str] = []
    other = trainer.transport.visit(newest.location, Caller("other"), other_half(acts))
    other.ask(newest)
    other.fetch(newest)
    other.close()
    assert acts == ["init", "start", "update", "finish"]


def other_half(acts: list[str]) -> Callable[[Call], None]:
    """Receives as the workers of another engine do, and loads nothing."""
    pair: list[Pair] = []

    def read(names: list[str], shapes: list[list[int]]) -> None:
        for _, shape in zip(names, shapes, strict=True):
            pair[0].receive(torch.empty(shape))

    def perform(call: Call) -> None:
        acts.append(call.act)
        if call.act == "init":
            address = (call.info["master_address"], call.info["master_port"])
            pair.append(Pair(socket.create_connection(address)))
        if call.act == "update":
            read(call.info["names"], call.info["shapes"])

    return perform


def _fields(manifest: Manifest) -> dict[str, object]:
    return {name: getattr(manifest, name) for name in manifest.__struct_fields__}


def _processes_of(engine: VllmEngine) -> list[int]:
    """vLLM's own processes of this engine."""
    manager = engine._host.llm.engine_core.resources.engine_manager
    cores = [process.pid for process in manager.processes]
    return [*(c.pid for core in cores for c in psutil.Process(core).children(True)), *cores]

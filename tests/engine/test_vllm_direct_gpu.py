"""`nccl` and `ipc` themselves, on GPUs: what `test_vllm_direct` shows of everything but them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from direct_trainer import SECONDS, Trainer, assert_exact, decode, follow
from engine_work import by_member, drain, work
from torch import Tensor
from vllm_engines import planted_for_vllm

from pipeline.messages import Completion
from pipeline.run import Model
from pipeline.weights.door import Sender, Session, Source
from pipeline.weights.line import Ask
from pipeline.weights.origin import Origin
from services.inference.engines.vllm.build import start
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.host import EngineDied

GPUS = torch.cuda.device_count()
TIMEOUT = 20.0
KINDS = {"ipc": (1, "0"), "nccl": (2, "1")}
"""How many GPUs each needs, and which one the engine is on; the trainer is on the first."""

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    needed = KINDS[request.param][0]
    if needed > GPUS:
        pytest.skip(f"{request.param} needs {needed} GPUs, and there are {GPUS}")
    return str(request.param)


@pytest.fixture(scope="module")
def trainer(kind: str) -> Iterator[Trainer]:
    transport: Any = Origin({"use": kind, "timeout_seconds": TIMEOUT}, "run").transport()
    made = Trainer(transport, torch.bfloat16)
    opened: Callable[..., Sender] = transport.open_sender
    prepare: Callable[[Tensor], Tensor] = transport.prepare

    def watched(ask: Ask, session: Session, source: Source) -> Sender:
        return made.watch(opened(ask, session, source))

    def asked(tensor: Tensor) -> Tensor:
        made.before("tensor")
        return prepare(tensor)

    transport.open_sender, transport.prepare = watched, asked
    yield made
    transport.close()


@pytest.fixture(scope="module")
def starting(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], VllmEngine]]:
    path: Path = tmp_path_factory.mktemp("planted")
    planted_for_vllm(0).save_pretrained(path)
    made: list[VllmEngine] = []

    def begin(boot: str) -> VllmEngine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", KINDS[kind][1])
            engine = start(
                Model(path=str(path), dtype="bfloat16"),
                boot=boot,
                origin=Origin({"use": kind, "timeout_seconds": TIMEOUT}, "run"),
                swap="keep",
                slots=16,
                max_length=None,
                args={"gpu_memory_utilization": 0.3, "enforce_eager": True},
                ends=frozenset(),
            )
        made.append(engine)
        return engine

    yield begin
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def engine(starting: Callable[[str], VllmEngine], trainer: Trainer) -> VllmEngine:
    made = starting("inference-1")
    follow(made, trainer.publish())
    return made


def test_twelve_flips_under_load_mislabel_no_token(engine: VllmEngine, trainer: Trainer) -> None:
    engine.add(work("a", members=8, max_tokens=200))
    done: list[Completion] = []
    for _ in range(12):
        done += decode(engine, 5)
        manifest = trainer.publish()
        done += follow(engine, manifest)
        assert engine.fingerprint() == manifest.fingerprint
    done += drain(engine).values()
    assert len(by_member(done)) == 8
    assert_exact(done)


def test_a_trainer_that_hangs_half_way_ends_the_engine_and_the_next_one_is_served(
    engine: VllmEngine, trainer: Trainer, starting: Callable[[str], VllmEngine]
) -> None:
    """The last of this module. A transfer by nccl hangs in a kernel: it has to be given up."""
    over, manifest = threading.Event(), trainer.publish()
    trainer.before = lambda what: over.wait(SECONDS) if what == "tensor" else None
    with pytest.raises(EngineDied, match="broke off half-way"):
        follow(engine, manifest)
    over.set()
    trainer.before = lambda _: None
    engine.close()
    again = starting("inference-2")
    follow(again, manifest)
    assert again.fingerprint() == manifest.fingerprint
    again.add(work("b", members=2, max_tokens=5))
    assert_exact([*drain(again).values()])

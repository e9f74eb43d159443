"""A trained adapter on vLLM: only it travels, and sequences in flight go on with the new one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import plain_logprobs
from engine_work import drain, logprobs, tokens, versions, work
from vllm_engines import NO_END, drawn, flip_when_ready, settle_vllm, tiny_for_vllm

from pipeline.errors import ConfigError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import (
    describe_all,
    fingerprint_of,
    frozen_parameters,
    named_parameters,
)
from pipeline.model.policy import load_policy
from pipeline.run import Model
from pipeline.weights.origin import Origin
from pipeline.weights.shm import ShmTransport
from services.inference.engines.vllm.build import start
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.lora import NUMBER, adapter_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

SWAPS = 100
SPEC = {"use": "lora", "rank": 4, "alpha": 8.0}


class Trained:
    """A trainer of adapters: version v has tensors drawn with seed v."""

    def __init__(self, folder: Path) -> None:
        tiny_for_vllm().save_pretrained(folder / "model")
        self.model = Model(path=str(folder / "model"), dtype="float32", adapter=SPEC)
        self.origin = Origin({"use": "shm", "folder": str(folder)}, "run")
        self.transport = ShmTransport(folder=str(folder), run="run")
        self.version = 0

    def policy(self, version: int) -> Any:
        policy = load_policy(self.model, dtype="float32")
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for _, parameter in named_parameters(policy):
                parameter.normal_(0, 0.3, generator=generator)
        return policy

    def publish(self) -> Manifest:
        self.version += 1
        policy = self.policy(self.version)
        named = [(name, p.data) for name, p in named_parameters(policy)]
        entries = (*describe_all(named), *describe_all(frozen_parameters(policy)))
        return Manifest(
            version=self.version,
            step=self.version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=self.transport.send(self.version, named, epoch=1),
            tensors=entries,
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("lora"))


@pytest.fixture(scope="module")
def engine(trained: Trained) -> Iterator[VllmEngine]:
    made = start(
        trained.model,
        boot="b",
        origin=trained.origin,
        swap="recompute",
        slots=8,
        max_length=None,
        args={},
        ends=NO_END,
    )
    policy = load_policy(trained.model, dtype="float32")
    assert made.fingerprint() == fingerprint_of(
        (*describe_all(named_parameters(policy)), *describe_all(frozen_parameters(policy)))
    )
    yield made
    made.close()
    trained.transport.close()


def test_spans_are_exact_and_each_log_prob_is_that_of_the_adapter_of_its_span(
    trained: Trained, engine: VllmEngine
) -> None:
    follow(trained, engine)
    engine.add(work(max_tokens=400))
    done = drawn(engine, 60)
    for _ in range(3):
        done += follow(trained, engine)
        done += drawn(engine, 60)
    done += [*drain(engine).values()]
    assert len(done) == 4 and {len(c.spans) for c in done} >= {4}
    policies = {v: trained.policy(v) for v in {v for c in done for v in versions(c)}}
    for completion in done:
        ids = tokens(completion)
        plain = {v: plain_logprobs(policies[v], [1, 2, 3], ids) for v in {*versions(completion)}}
        expected = torch.stack([plain[v][i] for i, v in enumerate(versions(completion))])
        assert (torch.tensor(logprobs(completion)) - expected).abs().max().item() <= 1e-4


def follow(trained: Trained, engine: VllmEngine) -> list[Any]:
    engine.stage(trained.publish(), trained.transport)
    return flip_when_ready(engine)


def test_a_hundred_swaps_leave_one_adapter_resident_and_two_folders(
    trained: Trained, engine: VllmEngine
) -> None:
    for _ in range(SWAPS):
        follow(trained, engine)
    host = engine._host
    assert [*host.call(host.llm.list_loras())] == [NUMBER]
    assert len([*engine._loader._root.iterdir()]) <= 2  # type: ignore[attr-defined]


def test_C020_a_prompt_after_a_swap_reads_no_keys_of_the_former_adapter(
    trained: Trained, engine: VllmEngine
) -> None:
    prompt = [5, 6, 7] * 50
    for _ in range(2):
        follow(trained, engine)
        engine.add(work("g", prompt=prompt, max_tokens=10, members=2))
        policy = trained.policy(engine.version)
        for completion in drain(engine).values():
            plain = plain_logprobs(policy, prompt, tokens(completion))
            assert (torch.tensor(logprobs(completion)) - plain).abs().max().item() <= 1e-4


def test_C023_nothing_is_read_from_the_disk_once_an_adapter_is_loaded(
    trained: Trained, engine: VllmEngine
) -> None:
    follow(trained, engine)
    shutil.rmtree(engine._loader.request.lora_path)  # type: ignore[union-attr]
    engine.add(work(max_tokens=10))
    assert len(drain(engine)) == 4


def test_an_adapter_on_another_model_is_refused_and_the_old_one_serves(
    trained: Trained, engine: VllmEngine
) -> None:
    follow(trained, engine)
    before = engine.version
    manifest = trained.publish()
    *first, last = manifest.tensors
    other = (*first, type(last)(last.name, last.dtype, last.shape, "00" * 8))
    engine.stage(
        Manifest(
            version=manifest.version,
            step=1,
            epoch=1,
            fingerprint=fingerprint_of(other),
            location=manifest.location,
            tensors=other,
        ),
        trained.transport,
    )
    error = settle_vllm(engine)
    assert error and "frozen here with checksum" in error
    assert engine.version == before
    follow(trained, engine)


def test_a_wrong_adapter_is_undone(trained: Trained, engine: VllmEngine) -> None:
    follow(trained, engine)
    right = engine.version
    engine.add(work(max_tokens=300))
    drawn(engine, 40)
    follow(trained, engine)
    drawn(engine, 40)
    assert engine.revert() > 0 and engine.version == right
    policy = trained.policy(right)
    for completion in drain(engine).values():
        assert {*versions(completion)} == {right}
        plain = plain_logprobs(policy, [1, 2, 3], tokens(completion))
        assert (torch.tensor(logprobs(completion)) - plain).abs().max().item() <= 1e-4


def test_an_adapter_that_vllm_has_no_room_for_is_refused(trained: Trained) -> None:
    model = Model(path=trained.model.path, dtype="float32", adapter={**SPEC, "rank": 600})
    with pytest.raises(ConfigError, match=r"rank.*600.*512 at most"):
        adapter_of(model)

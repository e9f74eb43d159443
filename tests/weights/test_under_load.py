"""Fifty flips of a real engine with sequences in flight, over every transport."""

import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pipeline.messages import Completion, Manifest, Prompt, Sampling, Work
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.protocols import Transport
from pipeline.weights.publisher import Publisher
from services.inference.engines.hf.engine import HfEngine

FLIPS, MEMBERS, LENGTH = 50, 4, 24


def tiny() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.bfloat16().eval()  # type: ignore[no-any-return]


def work(number: int) -> Work:
    prompt = Prompt(
        group=f"g{number}",
        seq=number,
        ids=array("i", [1, 2, 3]).tobytes(),
        members=MEMBERS,
        seed=number,
        sampling=Sampling(max_tokens=LENGTH),
    )
    return Work(prompt=prompt, todo=tuple(range(MEMBERS)), prefixes={})


class Trainer:
    """Publishes a version as often as it is told to; a few elements change each time."""

    def __init__(self, transport: Transport) -> None:
        self.masters, self.newest = tiny().float(), threading.Event()
        self.announced: list[Manifest] = []
        self._publisher = Publisher(self.announced.append, transport, epoch=1, dtype=torch.bfloat16)

    @torch.no_grad()
    def step(self, version: int) -> None:
        for _, parameter in named_parameters(self.masters):
            parameter.view(-1)[version % parameter.numel() :: 97].add_(0.01)
        self._publisher.publish(version, version, named_parameters(self.masters))


def test_fifty_flips_under_load_leave_the_engine_with_the_trainers_weights(
    opened: Callable[[Path], Transport], tmp_path: Path
) -> None:
    trainer, transport = Trainer(opened(tmp_path)), opened(tmp_path)
    engine = HfEngine(tiny(), boot="b", end_ids=frozenset())
    trainer.step(0)
    offered, done, begun = -1, list[Completion](), 0
    while engine.version < FLIPS:
        if engine.version >= 0 and begun - len(done) // MEMBERS < 4:
            engine.add(work(begun))
            begun += 1
        done += engine.step() if engine.busy else []
        if len(trainer.announced) > offered + 1:
            offered = trainer.announced[-1].version
            engine.stage(trainer.announced[-1], transport)
        if engine.flip():
            assert engine.fingerprint() == trainer.announced[engine.version].fingerprint
            if engine.version < FLIPS:
                trainer.step(engine.version + 1)
        assert engine.staging_error() is None
    right = fingerprint(named_parameters(trainer.masters), torch.bfloat16)
    assert engine.fingerprint() == right
    while engine.busy:
        done += engine.step()
    assert len(done) == begun * MEMBERS
    assert all(sum(span.tokens for span in c.spans) == LENGTH for c in done)
    assert any(len(c.spans) > 1 for c in done), "no flip came in the midst of a sequence"

"""Spans true by content: each version must emit one token, so every token tells its version."""

from __future__ import annotations

import time
from array import array
from pathlib import Path

import pytest
import torch
from stream import ROOT, start, write_run
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.ledger import Sum
from pipeline.messages import Beat, Completion
from pipeline.model.fingerprint import named_parameters
from pipeline.weights.publisher import Publisher
from pipeline.weights.shm import ShmTransport

pytestmark = pytest.mark.slow

VERSIONS = 60
FLIP_SECONDS = 0.03


def token_of(version: int) -> int:
    """Neither padding nor the end token of the demo's vocabulary of 22."""
    return 2 + version % 20


def planted(version: int) -> LlamaForCausalLM:
    """A model that emits the version's token with certainty, whatever it reads."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=22,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[token_of(version)] = 10.0
    return model.eval()


def check(completion: Completion) -> int:
    """Every token of every span is its version's; the number of versions."""
    ids, at = array("i", completion.ids), 0
    for span in completion.spans:
        assert set(ids[at : at + span.tokens]) == {token_of(span.version)}, completion.spans
        at += span.tokens
    assert at == len(ids) == completion.tokens
    return len({span.version for span in completion.spans})


def test_every_span_of_a_real_stream_names_the_version_that_ran(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    planted(0).save_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "demo" / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    path = write_run(
        tmp_path,
        prompts=400,
        top={"name": run_name},
        model={"path": str(tmp_path / "model")},
        lag={"max": 1000},
        sampling={"max_tokens": 200},
        inference={"engine": {"use": "hf", "slots": 16}},
    )
    run = load(path)
    processes = [
        start(tmp_path, service, str(path), "--redis", server_url)
        for service in ("prompting", "inference", "scoring")
    ]
    bus = Bus.connect(server_url, run_name)
    bus.open(run.identity, window=run.window, per_step=2, lag_max=1000, members=4)
    bus.beat(Beat(service="training", instance="test", boot="test:1"))
    bus.groups.lead(1, "test:1")
    transport = ShmTransport(run=run_name)
    publisher = Publisher(lambda m: bus.versions.announce(m, min_version=0), transport, epoch=1)
    spanned: list[int] = []
    deadline, batch = time.monotonic() + 90, 0
    for version in range(VERSIONS):
        publisher.publish(version, 0, named_parameters(planted(version)))
        publisher.flush()
        while version == 0 and not bus.groups.collect(1).groups:
            assert time.monotonic() < deadline, "no group was ever ready"
            time.sleep(0.05)
        time.sleep(FLIP_SECONDS)
        for group in bus.groups.fetch([t.group for t in bus.groups.collect(1).groups]):
            spanned += [check(member.completion) for member in group.members.values()]
            tokens = sum(member.completion.tokens for member in group.members.values())
            batch += 1
            fates = {group.prompt.group: {"trained": Sum(len(group.members), tokens)}}
            assert bus.groups.commit(1, batch=batch, changed=False, fates=fates) == "ok"
    bus.groups.finish(1, "done", "seen enough")
    for process in processes:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    assert len(spanned) > 50
    assert max(spanned) >= 3, "no member spanned three versions"
    bus.purge()

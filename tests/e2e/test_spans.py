"""Spans true by content: each version must emit one token, so every token tells its version."""

from __future__ import annotations

import subprocess
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
from services.inference.prefixes import CHUNK_TOKENS
from services.process import open_run

pytestmark = pytest.mark.slow

VERSIONS = 60
LONG = 1500
FLIP_SECONDS = 0.03


def token_of(version: int) -> int:
    """Neither padding nor the end token of the demo's vocabulary of 22."""
    return 2 + version % 20


def planted(version: int, *, positions: int = 256) -> LlamaForCausalLM:
    """A model that emits the version's token with certainty, whatever it reads."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=22,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=positions,
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


def write_planted(folder: Path, **options: int) -> None:
    """Version 0 as a model folder, with the demo's tokenizer."""
    planted(0, **options).save_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "demo" / "model")
    tokenizer.save_pretrained(folder / "model")


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Processes that end with the test, however that ends."""
    with ExitStack() as stack:

        def begin(*arguments: Any) -> subprocess.Popen[str]:
            process = start(*arguments)
            stack.callback(process.kill)
            return process

        yield begin


def test_after_a_kill_another_engine_goes_on_from_the_last_chunk(
    tmp_path: Path, server_url: str, run_name: str, begin: Callable[..., subprocess.Popen[str]]
) -> None:
    """kill -9 in mid-sequence, while versions flip: ids, log-probs and spans are those of both."""
    write_planted(tmp_path, positions=2048)
    path = write_run(
        tmp_path,
        prompts=2,
        top={"name": run_name},
        model={"path": str(tmp_path / "model")},
        lag={"max": 1000},
        sampling={"max_tokens": LONG},
    )
    bus = Bus.connect(server_url, run_name)
    open_run(bus, load(path))
    killed, prompting = (
        begin(tmp_path, service, str(path), "--redis", server_url, "--instance", f"{service}-1")
        for service in ("inference", "prompting")
    )
    wait_for(lambda: bus.state().cursor == 2)
    bus.beat(Beat(service="training", instance="test", boot="test:1"))
    bus.beat(Beat(service="scoring", instance="test-2", boot="test:2"))
    bus.groups.lead(1, "test:1")
    transport = ShmTransport(run=run_name)
    publisher = Publisher(lambda m: bus.versions.announce(m, min_version=0), transport, epoch=1)
    versions = iter(range(10_000))

    def saved() -> int:
        version = next(versions)
        publisher.publish(version, 0, named_parameters(planted(version, positions=2048)))
        publisher.flush()
        return bus.snapshot().ledger.get("generated", Sum(0, 0)).tokens

    wait_for(lambda: saved() >= 2 * CHUNK_TOKENS)
    killed.kill()
    killed.communicate(timeout=30)
    assert bus.bury("inference-1") == 1
    before = saved()
    second = begin(tmp_path, "inference", str(path), "--redis", server_url)
    done: list[Completion] = []
    wait_for(lambda: done or [*map(done.append, drawn(bus, 8))])
    for completion in done:
        check(completion)
        assert completion.tokens == len(completion.logprobs) // 4 == LONG
        assert max(map(abs, array("f", completion.logprobs))) < 1e-2
    kept = [sum(s.tokens for s in c.spans if s.boot.startswith("inference-1:")) for c in done]
    assert sum(kept) == before
    assert max(kept) < LONG and all(tokens == 0 or tokens >= CHUNK_TOKENS // 2 for tokens in kept)
    bus.groups.finish(1, "done", "seen enough")
    for process in (prompting, second):
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    bus.purge()


def drawn(bus: Bus, count: int) -> list[Completion]:
    """All members that were delivered, once there are so many."""
    leases = bus.completions.draw("test:2", held=[], count=100)
    found = [lease.work.completion for lease in leases]
    return found if len(found) == count else []


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def test_every_span_of_a_real_stream_names_the_version_that_ran(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    write_planted(tmp_path)
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

"""Flips of the embedded engine: one version a pass, right spans, and what becomes of the cache."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch
from engine_models import VOCABULARY, plain_logprobs, planted, tiny
from engine_work import (
    MemoryTransport,
    claim,
    drain,
    flip_to,
    logprobs,
    publish,
    settle,
    tokens,
    versions,
    work,
)
from transformers import PreTrainedModel

from pipeline.model.fingerprint import fingerprint, named_parameters
from services.inference.engines.hf.engine import HfEngine

NO_END: frozenset[int] = frozenset()


def engine_of(model: PreTrainedModel, **options) -> HfEngine:
    engine = HfEngine(model, **{"boot": "b", "end_ids": NO_END, **options})
    flip_to(engine, 0)
    return engine


def print_of(model: PreTrainedModel) -> str:
    return fingerprint(named_parameters(model))


def gap(completion, prompt: list[int], models: dict[int, PreTrainedModel]) -> float:
    """Of each log-prob from a plain pass over the whole row under the weights of its span."""
    ids = tokens(completion)
    plain = {v: plain_logprobs(models[v], prompt, ids) for v in {*versions(completion)}}
    expected = torch.stack([plain[v][i] for i, v in enumerate(versions(completion))])
    return (torch.tensor(logprobs(completion)) - expected).abs().max().item()


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_C029_each_span_holds_the_tokens_that_its_version_emits(swap: str) -> None:
    """Version v of the planted weights emits token v, whatever it reads."""
    chance = random.Random(1)
    engine = engine_of(planted(0), swap=swap, slots=10)
    done, added, spanning = {}, 0, set()
    for version in range(1, 30):
        for _ in range(chance.randrange(3)):
            lengths = chance.randrange(1, 12), chance.randrange(5, 60)
            engine.add(work(f"g{added}", prompt=[7] * lengths[0], max_tokens=lengths[1]))
            added += 1
        for _ in range(chance.randrange(1, 14)):
            done |= {(c.group, c.member): c for c in engine.step()}
        flip_to(engine, version, planted(version))
    done |= drain(engine)
    assert len(done) == 4 * added > 30
    for completion in done.values():
        assert tokens(completion) == versions(completion)
        spanning.add(len(completion.spans))
    assert {1, 2, 3} <= spanning


@pytest.mark.parametrize("name", ["llama", "qwen2_grouped_heads", "mistral_all_sliding"])
def test_recompute_continues_as_a_plain_pass_under_the_new_weights(name: str) -> None:
    models = {version: tiny(name, seed=version) for version in range(4)}
    engine = engine_of(tiny(name, seed=0), swap="recompute", slots=9)
    prompts = {f"g{g}": list(range(1, 2 + 3 * g)) for g in range(4)}
    for group, prompt in prompts.items():
        engine.add(work(group, prompt=prompt, max_tokens=30))
    done = {}
    for version in (1, 2, 3):
        for _ in range(7):
            done |= {(c.group, c.member): c for c in engine.step()}
        flip_to(engine, version, models[version])
    done |= drain(engine)
    assert len(done) == 16
    assert max(gap(c, prompts[c.group], models) for c in done.values()) <= 1e-4
    assert {len(c.spans) for c in done.values()} >= {1, 4}


def test_keep_goes_on_with_the_keys_of_the_old_weights() -> None:
    """Else the test above could pass by never flipping: here the plain pass must differ."""
    models = {version: tiny(seed=version) for version in range(2)}
    engine = engine_of(tiny(seed=0), swap="keep")
    engine.add(work(max_tokens=20))
    for _ in range(10):
        engine.step()
    flip_to(engine, 1, models[1])
    engine.step()
    assert not engine.last_step.prefill
    for completion in drain(engine).values():
        assert versions(completion) == [0] * 10 + [1] * 10
        assert gap(completion, [1, 2, 3], models) > 1e-3


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_a_prompt_after_a_flip_is_answered_as_by_a_fresh_engine(swap: str) -> None:
    engine, fresh = engine_of(tiny(seed=0), swap=swap), engine_of(tiny(seed=1))
    engine.add(work("g", prompt=[5, 6, 7]))
    drain(engine)
    flip_to(engine, 1, tiny(seed=1))
    for each in (engine, fresh):
        each.add(work("g", prompt=[5, 6, 7]))
    mine, other = drain(engine), drain(fresh)
    assert {k: (c.ids, c.logprobs) for k, c in mine.items()} == {
        k: (c.ids, c.logprobs) for k, c in other.items()
    }


def test_recompute_prefills_at_the_next_step_and_only_there() -> None:
    engine = engine_of(tiny(), swap="recompute")
    engine.add(work())
    seen = []
    for step in range(6):
        if step == 3:
            flip_to(engine, 1, tiny(seed=1))
        engine.step()
        seen.append(engine.last_step.prefill)
    assert seen == [True, False, False, True, False, False]


def test_C028_one_forward_pass_sees_one_version_in_all_layers() -> None:
    """Versions are staged by another thread, at any moment; 200 flips."""
    engine = engine_of(planted(1))
    layers = engine._passes._model.model.layers
    seen: list[set[float]] = []
    marks = [layer.self_attn.q_proj for layer in layers]
    marks.append(engine._passes._model.lm_head)

    def begin(*_: object) -> None:
        seen.append(set())

    def look(module: torch.nn.Module, *_: object) -> None:
        seen[-1].add(module.weight[0, 0].item())

    engine._passes._model.register_forward_pre_hook(begin)
    for module in marks:
        module.register_forward_pre_hook(look)
    publisher = _Publisher(engine, 200)
    publisher.start()
    versions_run = []
    while engine.version < 200:
        if not engine.busy:
            engine.add(work(f"g{len(versions_run)}", prompt=[1], max_tokens=50))
        engine.flip()
        versions_run.append(engine.version)
        seen_before = len(seen)
        engine.step()
        assert len(seen) == seen_before + 1
        assert seen[-1] == {float(engine.version)}
    publisher.join()
    assert len({*versions_run}) > 50


class _Publisher(threading.Thread):
    """Stages version after version, each with its number in every matrix that is looked at."""

    def __init__(self, engine: HfEngine, last: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._last = engine, last

    def run(self) -> None:
        transport, model = MemoryTransport(), planted(1)
        for version in range(1, self._last + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter[..., 0] = version
            self._engine.stage(publish(transport, version, model), transport)
            settle(self._engine)


def test_the_first_version_is_adopted_without_receiving() -> None:
    model = tiny()
    engine = HfEngine(model, boot="b", end_ids=NO_END)
    before = {name: tensor.data_ptr() for name, tensor in named_parameters(model)}
    engine.stage(claim(0, print_of(tiny())), MemoryTransport())
    flip = engine.flip()
    assert flip and flip.version == engine.version == 0
    assert engine.staging_error() is None
    assert before == {name: tensor.data_ptr() for name, tensor in named_parameters(model)}


def test_what_was_staged_before_a_newer_version_was_adopted_is_not_used() -> None:
    engine, transport = engine_of(tiny(seed=0)), MemoryTransport()
    engine.stage(publish(transport, 1, tiny(seed=1)), transport)
    settle(engine)
    engine.stage(claim(2, engine.fingerprint()), transport)
    flip = engine.flip()
    assert flip and flip.version == 2
    assert engine.flip() is None
    assert (engine.version, engine.fingerprint()) == (2, print_of(tiny(seed=0)))


def test_tied_embeddings_travel_once_and_stay_tied() -> None:
    model = tiny("llama")
    engine = engine_of(model)
    flip_to(engine, 1, tiny("llama", seed=1))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    engine.add(work())
    done = drain(engine)
    assert max(gap(c, [1, 2, 3], {1: tiny("llama", seed=1)}) for c in done.values()) <= 1e-4


def test_the_fingerprint_is_that_of_the_live_parameters() -> None:
    model = tiny(seed=0)
    engine = engine_of(model)
    flip_to(engine, 1, tiny(seed=1))
    assert engine.fingerprint() == print_of(tiny(seed=1))
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    assert engine.fingerprint() != print_of(tiny(seed=1))


def test_a_fingerprint_taken_while_versions_flip_is_always_one_versions() -> None:
    models = [tiny(seed=0), tiny(seed=1)]
    known = {print_of(model) for model in models}
    engine = engine_of(tiny(seed=0))
    found: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            found.append(engine.fingerprint())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    for version in range(1, 60):
        flip_to(engine, version, models[version % 2])
    stop.set()
    watcher.join()
    assert {*found} == known


def test_a_swap_waits_while_the_tensors_are_looked_at() -> None:
    engine, transport = engine_of(tiny(seed=0)), MemoryTransport()
    engine.stage(publish(transport, 1, tiny(seed=1)), transport)
    settle(engine)
    swap = threading.Thread(target=engine.flip, daemon=True)
    with engine._weights._lock:
        swap.start()
        swap.join(0.05)
        assert swap.is_alive()
        assert engine.version == 0
    swap.join()
    assert engine.version == 1


def _torn(transport: MemoryTransport, name: str) -> None:
    transport.sent[1].pop(name)


def _wrong(transport: MemoryTransport, name: str) -> None:
    transport.sent[1][name] += 1


@pytest.mark.parametrize("damage", [_torn, _wrong])
def test_a_version_that_cannot_be_staged_leaves_the_old_one_serving(
    damage: Callable[[MemoryTransport, str], None],
) -> None:
    engine, transport = engine_of(tiny(seed=0)), MemoryTransport()
    engine.add(work())
    engine.step()
    manifest = publish(transport, 1, tiny(seed=1))
    damage(transport, "model.norm.weight")
    engine.stage(manifest, transport)
    settle(engine)
    assert engine.flip() is None
    error = engine.staging_error()
    assert error and "model.norm.weight" in error
    assert engine.staging_error() is None
    assert engine.fingerprint() == print_of(tiny(seed=0))
    done = drain(engine)
    assert max(gap(c, [1, 2, 3], {0: tiny(seed=0)}) for c in done.values()) <= 1e-4
    flip_to(engine, 2, tiny(seed=1))
    assert engine.version == 2


def test_parking_across_a_flip_keeps_every_span() -> None:
    first, second = engine_of(planted(0)), engine_of(planted(0), boot="c")
    first.add(work(members=2, max_tokens=20))
    for version in (1, 2):
        first.step()
        flip_to(first, version, planted(version))
        flip_to(second, version, planted(version))
    first.step()
    second.add(work(members=2, max_tokens=20, prefixes=first.park()))
    second.step()
    flip_to(second, VOCABULARY - 1, planted(VOCABULARY - 1))
    for completion in drain(second).values():
        assert tokens(completion) == versions(completion) == [0, 1, 2, 2] + [31] * 16
        assert [s.boot for s in completion.spans] == ["b", "b", "b", "c", "c"]


def test_a_flip_costs_less_than_a_decode_step() -> None:
    engine = engine_of(tiny(seed=0))
    for group in range(16):
        engine.add(work(f"g{group}", max_tokens=60))
    pauses, seconds = [], []
    for version in range(1, 20):
        engine.step()
        seconds.append(engine.last_step.seconds)
        transport = MemoryTransport()
        engine.stage(publish(transport, version, tiny(seed=version % 2)), transport)
        settle(engine)
        flip = engine.flip()
        assert flip
        pauses.append(flip.pause_seconds)
    assert sorted(pauses)[9] < sorted(seconds)[9]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_flip_stays_on_it_and_its_fingerprint_is_the_announced_one() -> None:
    engine = engine_of(tiny(seed=0).to("cuda"))
    engine.add(work(max_tokens=60))
    engine.step()
    flip_to(engine, 1, tiny(seed=1))
    assert engine.fingerprint() == print_of(tiny(seed=1))
    drain(engine)
    live = engine._weights._parameters.values()
    assert {parameter.device.type for parameter in live} == {"cuda"}

"""Flips of the embedded engine: one version a pass, right spans, and what becomes of the cache."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from engine_models import VOCABULARY, plain_logprobs, planted, tiny
from engine_work import (
    MemoryTransport,
    claim,
    drain,
    flip_to,
    logprobs,
    offer,
    publish,
    settle,
    tokens,
    versions,
    work,
)
from transformers import PreTrainedModel

from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.run import MaxAge, Swap
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


@pytest.mark.parametrize("swap", ["keep", "recompute", MaxAge(max_age=1), "drain"], ids=str)
def test_C029_each_span_holds_the_tokens_that_its_version_emits(swap: Swap) -> None:
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
        offer(engine, version, planted(version))
        while engine.version < version and engine.flip() is None:
            done |= {(c.group, c.member): c for c in engine.step()}
    done |= drain(engine)
    assert len(done) == 4 * added > 30
    for completion in done.values():
        assert tokens(completion) == versions(completion)
        spanning.add(len(completion.spans))
    assert spanning == {1} if swap == "drain" else {1, 2, 3} <= spanning


@pytest.mark.parametrize("swap", ["recompute", MaxAge(max_age=0)], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2_grouped_heads", "mistral_all_sliding"])
def test_recompute_continues_as_a_plain_pass_under_the_new_weights(name: str, swap: Swap) -> None:
    models = {version: tiny(name, seed=version) for version in range(4)}
    engine = engine_of(tiny(name, seed=0), swap=swap, slots=9)
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


def test_max_age_makes_anew_what_is_older_and_leaves_the_rest() -> None:
    """A group of version 0 and one of version 1, at most one version old: read at 2 and at 3."""
    engine = engine_of(tiny(seed=0), swap=MaxAge(max_age=1))
    models = {version: tiny(seed=version) for version in range(4)}
    read: list[int] = []
    embedding = engine._passes._model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    engine.add(work("old", members=2, max_tokens=20))
    seen = []
    for version in (1, 2, 3):
        for _ in range(5):
            engine.step()
        flip_to(engine, version, models[version])
        if version == 1:
            engine.add(work("young", members=2, max_tokens=20))
        read.clear()
        engine.step()
        seen.append(read[0])
    done = drain(engine)
    # 3 tokens of prompt, and 11 or 12 drawn; the last one is not in the cache.
    assert seen == [2, 2 * (3 + 11 - 1), 2 * (3 + 12 - 1)]
    for completion in done.values():
        first, second = (2, 3) if completion.group == "old" else (3, 4)
        fresh = [i for i, v in enumerate(versions(completion)) if first <= v < second]
        stale = [i for i, v in enumerate(versions(completion)) if v == first - 1]
        plain = {v: plain_logprobs(models[v], [1, 2, 3], tokens(completion)) for v in models}
        gaps = [
            abs(logprobs(completion)[i] - plain[v][i].item())
            for i, v in enumerate(versions(completion))
        ]
        assert max(gaps[i] for i in fresh) <= 1e-4
        assert max(gaps[i] for i in stale) > 1e-3


def test_drain_begins_nothing_once_a_version_is_staged_and_flips_when_all_are_done() -> None:
    engine = engine_of(planted(0), swap="drain", slots=4)
    engine.add(work("first", members=2, max_tokens=9))
    engine.add(work("second", members=4, max_tokens=5))
    engine.step()
    offer(engine, 1, planted(1))
    assert engine.flip() is None and engine.version == 0
    assert engine.room() == 0
    done = {}
    while engine.flip() is None:
        assert engine.last_step.rows <= 4
        done |= {(c.group, c.member): c for c in engine.step()}
    assert {key[0] for key in done} == {"first", "second"} and len(done) == 4
    assert engine.version == 1 and engine.room() == 1
    done |= drain(engine)
    versions_of = {key: {*versions(c)} for key, c in done.items()}
    assert versions_of.pop(("second", 2)) == versions_of.pop(("second", 3)) == {1}
    assert {*map(tuple, versions_of.values())} == {(0,)}
    assert all(tokens(c) == versions(c) for c in done.values())


def test_drain_waits_for_nothing_where_the_weights_stay_the_same() -> None:
    engine = engine_of(tiny(), swap="drain")
    engine.add(work(max_tokens=9))
    engine.step()
    engine.stage(claim(1, engine.fingerprint()), MemoryTransport())
    assert engine.flip() and engine.busy


@pytest.mark.parametrize("swap", ["keep", "recompute", MaxAge(max_age=3), "drain"], ids=str)
def test_C018_C019_a_prompt_after_a_flip_is_answered_as_by_a_fresh_engine(swap: Swap) -> None:
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
    """Versions are staged by another thread, at any moment of a pass; 200 flips."""
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
    flips = []
    while engine.version < 200:
        if not engine.busy:
            engine.add(work(f"g{len(seen)}", prompt=[1], max_tokens=50))
        if flip := engine.flip():
            flips.append(flip.version)
            publisher.flipped.set()
        seen_before = len(seen)
        engine.step()
        assert len(seen) == seen_before + 1
        assert seen[-1] == {float(engine.version)}
    publisher.join()
    assert flips == [*range(1, 201)]


class _Publisher(threading.Thread):
    """Stages version after version, each with its number in every matrix that is looked at."""

    def __init__(self, engine: HfEngine, last: int) -> None:
        super().__init__(daemon=True)
        self._engine, self._last = engine, last
        self.flipped = threading.Event()

    def run(self) -> None:
        transport, model = MemoryTransport(), planted(1)
        for version in range(1, self._last + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter[..., 0] = version
            self.flipped.clear()
            self._engine.stage(publish(transport, version, model), transport)
            assert self.flipped.wait(60)


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

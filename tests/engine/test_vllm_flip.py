"""Flips of vLLM's engine in mid-sequence, by content."""

from __future__ import annotations

import random

import pytest
import torch
from engine_models import plain_logprobs
from engine_work import drain, logprobs, tokens, versions, work
from vllm_engines import (
    CANARY,
    Vllm,
    drawn,
    flip_when_ready,
    planted_for_vllm,
    settle_vllm,
    tiny_for_vllm,
)

from pipeline.errors import WeightsError
from pipeline.run import MaxAge, Swap

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

POLICIES = pytest.mark.parametrize(
    "swap", ["keep", "recompute", MaxAge(max_age=1), "drain"], ids=str
)
FLIPS = 24


@POLICIES
def test_C029_each_span_holds_the_tokens_that_its_version_emits_under_load(
    vllm: Vllm, swap: Swap
) -> None:
    """Version v of the planted weights emits token v, whatever it reads. Flips are asked for after
    numbers of tokens; each member is delivered once, and as long as it was to be."""
    chance = random.Random(1)
    engine = vllm.engine(swap=swap, slots=12)
    engine.stage(vllm.publish(1, planted_for_vllm(1)), vllm.transport)
    flip_when_ready(engine)
    done, lengths, spanning = [], {}, set()
    for version in range(2, FLIPS + 2):
        while len(lengths) < 4 or chance.random() < 0.4:
            group, prompt = f"g{len(lengths)}", [7] * chance.randrange(1, 12)
            lengths[group] = chance.randrange(5, 400)
            engine.add(work(group, prompt=prompt, max_tokens=lengths[group]))
        done += drawn(engine, chance.randrange(1, 200))
        engine.stage(vllm.publish(version, planted_for_vllm(version)), vllm.transport)
        done += flip_when_ready(engine)
        assert engine.fingerprint() == engine._live._now.fingerprint
    done += [*drain(engine).values()]
    assert sorted((c.group, c.member) for c in done) == sorted(
        (group, member) for group in lengths for member in range(4)
    )
    for completion in done:
        assert tokens(completion) == versions(completion)
        assert completion.tokens == len(logprobs(completion)) == lengths[completion.group]
        spanning.add(len(completion.spans))
    assert spanning == {1} if swap == "drain" else max(spanning) >= 3


def test_saved_prefixes_have_the_spans_that_their_tokens_show(vllm: Vllm) -> None:
    """What is counted here at each pause, while vLLM tells nothing before the end."""
    engine = vllm.engine()
    engine.add(work("a", members=4, max_tokens=2500))
    engine.stage(vllm.publish(1, planted_for_vllm(1)), vllm.transport)
    flip_when_ready(engine)
    seen = 0
    for version in range(2, 8):
        drawn(engine, 40)
        engine.stage(vllm.publish(version, planted_for_vllm(version)), vllm.transport)
        flip_when_ready(engine)
        for prefix in engine.prefixes():
            own = [v for v in versions(prefix) if v > 0]
            assert tokens(prefix)[-len(own) :] == own
            assert sum(s.tokens for s in prefix.spans) == prefix.tokens
            seen += 1
    assert seen == 24
    drain(engine)  # vLLM's own labels are compared with what was counted


def test_recompute_continues_as_a_plain_pass_under_the_new_weights(vllm: Vllm) -> None:
    models = {v: tiny_for_vllm(v, tied=False) for v in range(4)}
    engine = vllm.engine(swap="recompute", slots=9)
    prompts = {f"g{g}": list(range(1, 2 + 9 * g)) for g in range(2)}
    for group, prompt in prompts.items():
        engine.add(work(group, prompt=prompt, max_tokens=900))
    done = []
    for version in (1, 2, 3):
        done += drawn(engine, 150)
        engine.stage(vllm.publish(version, models[version]), vllm.transport)
        done += flip_when_ready(engine)
    done += [*drain(engine).values()]
    assert len(done) == 8 and {len(c.spans) for c in done} >= {4}
    assert max(gap(c, prompts[c.group], models) for c in done) <= 1e-4


def gap(completion, prompt: list[int], models: dict) -> float:
    """Of each log-prob from a plain pass over the whole row under the weights of its span."""
    ids = tokens(completion)
    plain = {v: plain_logprobs(models[v], prompt, ids) for v in {*versions(completion)}}
    expected = torch.stack([plain[v][i] for i, v in enumerate(versions(completion))])
    return (torch.tensor(logprobs(completion)) - expected).abs().max().item()


def test_keep_goes_on_with_the_keys_of_the_old_weights(vllm: Vllm) -> None:
    """Else the test above could pass by never flipping: here the plain pass must differ."""
    models = {v: tiny_for_vllm(v, tied=False) for v in range(2)}
    engine = vllm.engine(swap="keep")
    engine.add(work(max_tokens=900))
    drawn(engine, 100)
    engine.stage(vllm.publish(1, models[1]), vllm.transport)
    done = [*flip_when_ready(engine), *drain(engine).values()]
    assert {len(c.spans) for c in done} == {2}
    assert min(gap(c, [1, 2, 3], models) for c in done) > 1e-3


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_C018_C019_a_prompt_after_a_flip_is_answered_as_by_a_fresh_engine(
    vllm: Vllm, swap: Swap
) -> None:
    """Its keys are shared with nobody's of another version, as long as the prompt is."""
    prompt, models = [5, 6, 7] * 60, {1: tiny_for_vllm(1, tied=False)}
    engine = vllm.engine(swap=swap)
    engine.add(work("before", prompt=prompt, max_tokens=5))
    drain(engine)
    engine.stage(vllm.publish(1, models[1]), vllm.transport)
    flip_when_ready(engine)
    engine.add(work("after", prompt=prompt, max_tokens=40))
    done = drain(engine)
    assert max(gap(c, prompt, models) for c in done.values()) <= 1e-4


def test_a_wrong_flip_is_undone_by_content_and_what_it_sampled_is_dropped(vllm: Vllm) -> None:
    engine = vllm.engine(swap="keep")
    engine.stage(vllm.publish(1, planted_for_vllm(1)), vllm.transport)
    flip_when_ready(engine)
    engine.add(work("a", members=3, max_tokens=900))
    drawn(engine, 30)
    engine.stage(vllm.publish(2, planted_for_vllm(2)), vllm.transport)
    flip_when_ready(engine)
    engine.add(work("b", members=2, max_tokens=4))
    while engine.version == 2 and not any(f.group == "b" for f in engine._done):
        engine._admit()
        engine._hear(0.05)  # the members of b end, and are not delivered yet
    dropped = engine.revert()
    assert dropped >= 4 and engine.version == 1
    assert {p.spans[-1].version for p in engine.prefixes()} == {1}
    engine.stage(vllm.publish(2, planted_for_vllm(2)), vllm.transport)
    done = [*flip_when_ready(engine), *drain(engine).values()]
    assert {c.group for c in done} == {"a", "b"} and len(done) == 5
    for completion in done:
        assert tokens(completion) == versions(completion)


def test_after_a_revert_keys_are_made_anew(vllm: Vllm) -> None:
    models = {v: tiny_for_vllm(v, tied=False) for v in range(3)}
    prompt = [4, 9, 8] * 50
    engine = vllm.engine(swap="keep")
    engine.stage(vllm.publish(1, models[1]), vllm.transport)
    flip_when_ready(engine)
    engine.add(work("a", prompt=prompt, max_tokens=900))
    drawn(engine, 40)
    engine.stage(vllm.publish(2, models[2]), vllm.transport)
    flip_when_ready(engine)
    drawn(engine, 40)
    engine.revert()
    engine.add(work("b", prompt=prompt, max_tokens=20))
    done = drain(engine)
    assert {v for c in done.values() for v in versions(c)} == {1}
    assert max(gap(c, prompt, models) for c in done.values()) <= 1e-4


def test_the_former_weights_are_kept_until_the_next_version_is_received(vllm: Vllm) -> None:
    engine = vllm.engine()
    engine.stage(vllm.publish(1, planted_for_vllm(1)), vllm.transport)
    flip_when_ready(engine)
    engine.stage(vllm.publish(2, planted_for_vllm(2)), vllm.transport)
    with pytest.raises(WeightsError, match="version 1 is wrong, and the former weights are gone"):
        engine.revert()
    settle_vllm(engine)


def test_C025_the_fingerprint_is_a_sentence_where_the_canary_differs(vllm: Vllm) -> None:
    engine = vllm.engine()
    manifest = vllm.publish(1, tiny_for_vllm(1, tied=False), canary=tiny_for_vllm(2, tied=False))
    engine.stage(manifest, vllm.transport)
    flip_when_ready(engine)
    assert "log-probs of the canary are" in engine.fingerprint()
    engine.stage(vllm.publish(2, tiny_for_vllm(1, tied=False)), vllm.transport)
    flip_when_ready(engine)
    assert engine.fingerprint() == manifest.fingerprint


def test_the_log_probs_of_ids_are_those_of_a_plain_pass_while_others_decode(vllm: Vllm) -> None:
    engine = vllm.engine()
    engine.add(work(max_tokens=100))
    drawn(engine, 20)
    found = engine.logprobs(CANARY)
    plain = plain_logprobs(tiny_for_vllm(0, tied=False), CANARY[:1], CANARY[1:])
    assert (torch.tensor(found) - plain).abs().max().item() <= 1e-4
    assert len(drain(engine)) == 4

"""The embedded engine's log-probs against a plain forward pass, on several architectures."""

from __future__ import annotations

import pytest
import torch
from engine_models import CONFIGS, CONTEXT, plain_logprobs, tiny
from engine_work import drain, flip_to, logprobs, tokens, work

from pipeline.errors import ConfigError
from services.inference.engines.hf.engine import HfEngine
from services.inference.engines.hf.passes import _PREFILL_TOKENS


def engine_of(name: str = "llama", **options) -> HfEngine:
    attention = options.pop("attention", "sdpa")
    options = {"boot": "b", "end_ids": frozenset({0, 5}), **options}
    engine = HfEngine(tiny(name, attention=attention), **options)
    flip_to(engine, 0)
    return engine


def worst_gap(done: dict, prompts: dict[str, list[int]], model, temperature: float) -> float:
    """The largest difference of a log-prob from that of a plain forward pass."""
    gaps = []
    for completion in done.values():
        prompt, ids = prompts[completion.group], tokens(completion)
        plain = plain_logprobs(model, prompt, ids, temperature)
        gaps.append((torch.tensor(logprobs(completion)) - plain).abs().max().item())
    return max(gaps)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_C003_log_probs_are_those_of_a_plain_forward_pass(
    name: str, attention: str, temperature: float
) -> None:
    engine = engine_of(name, attention=attention, slots=7)
    prompts = {f"g{g}": list(range(1, 2 + 4 * g)) for g in range(6)}
    for group, prompt in prompts.items():
        engine.add(work(group, prompt=prompt, temperature=temperature, max_tokens=60))
    done = drain(engine)
    assert len(done) == 24
    reference = tiny(name, attention="eager")
    assert worst_gap(done, prompts, reference, temperature) <= 1e-4


def test_rows_of_several_temperatures_share_a_pass() -> None:
    engine, reference = engine_of(slots=7), tiny()
    heats = {f"g{g}": 0.4 + 0.3 * g for g in range(6)}
    for group, heat in heats.items():
        engine.add(work(group, temperature=heat, max_tokens=50))
    done = drain(engine)
    for group, heat in heats.items():
        mine = {key: c for key, c in done.items() if c.group == group}
        assert worst_gap(mine, {group: [1, 2, 3]}, reference, heat) <= 1e-4


def test_greedy_takes_the_likeliest_token_with_certainty() -> None:
    engine, reference = engine_of(end_ids=frozenset()), tiny()
    engine.add(work(members=2, temperature=0.0, prompt=[4, 2]))
    done = drain(engine)
    ids = tokens(done["g", 0])
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([[4, 2, *ids]]), use_cache=False).logits[0]
    assert ids == logits[1:-1].argmax(-1).tolist() == tokens(done["g", 1])
    assert set(logprobs(done["g", 0])) == {0.0}


def test_the_draws_follow_the_distribution() -> None:
    """Chi-squared of 4096 first tokens against the model's own probabilities."""
    engine, reference = engine_of(slots=512), tiny()
    for group in range(8):
        engine.add(work(f"g{group}", members=512, max_tokens=1, prompt=[3, 1]))
    first = torch.tensor([tokens(c)[0] for c in drain(engine).values()])
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([[3, 1]])).logits[0, -1].softmax(-1) * 4096
    counts = torch.bincount(first, minlength=len(expected))
    common = expected > 5
    chi = ((counts - expected) ** 2 / expected)[common].sum().item()
    assert common.sum() > 10
    assert chi < 2.2 * common.sum()


def test_the_cache_grows_under_running_members() -> None:
    engine, reference = engine_of(end_ids=frozenset()), tiny()
    engine.add(work("short", prompt=[1, 2], members=2, max_tokens=30))
    for _ in range(5):
        engine.step()
    engine.add(work("long", prompt=[7] * 150, members=2, max_tokens=90))
    prompts = {"short": [1, 2], "long": [7] * 150}
    assert worst_gap(drain(engine), prompts, reference, 1.0) <= 1e-4


def test_more_prompt_than_one_pass_takes_is_prefilled_in_several() -> None:
    engine, reference = engine_of(end_ids=frozenset(), slots=40), tiny()
    prompts = {f"g{g}": [1 + g % 30] * (CONTEXT - 8 - g % 5) for g in range(40)}
    assert sum(map(len, prompts.values())) > _PREFILL_TOKENS
    for group, prompt in prompts.items():
        engine.add(work(group, prompt=prompt, members=1, max_tokens=3))
    assert worst_gap(drain(engine), prompts, reference, 1.0) <= 1e-4


def test_a_groups_prompt_is_prefilled_once() -> None:
    engine = engine_of(end_ids=frozenset())
    read: list[int] = []
    embedding = engine._passes._model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, args, output: read.append(args[0].numel()))
    engine.add(work(prompt=range(1, 21), members=8))
    engine.step()
    engine.step()
    assert read == [19, 8, 8]


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    engine, reference = engine_of(), tiny()
    engine.add(work(prompt=[6], members=3))
    done = drain(engine)
    assert not engine.last_step.prefill
    assert worst_gap(done, {"g": [6]}, reference, 1.0) <= 1e-4


def test_bfloat16_runs_and_keeps_float32_log_probs() -> None:
    model = tiny("qwen2_grouped_heads").to(torch.bfloat16)
    engine = HfEngine(model, boot="b", end_ids=frozenset())
    flip_to(engine, 0)
    engine.add(work(max_tokens=20))
    done = drain(engine)
    reference = tiny("qwen2_grouped_heads").to(torch.bfloat16)
    assert worst_gap(done, {"g": [1, 2, 3]}, reference, 1.0) < 0.2


def test_layers_that_keep_no_keys_are_refused_by_name() -> None:
    model = tiny()
    model.config.layer_types = ["linear_attention"] * model.config.num_hidden_layers
    with pytest.raises(ConfigError, match=r"inference\.engine = 'hf': .*linear_attention"):
        HfEngine(model, boot="b", end_ids=frozenset())


def test_a_longer_context_than_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_length = 257: must be 2 to 256"):
        HfEngine(tiny(), boot="b", end_ids=frozenset(), max_length=CONTEXT + 1)


def test_an_eighth_of_the_slots_may_wait_so_that_none_stands_empty() -> None:
    engine = engine_of(end_ids=frozenset(), slots=16)
    engine.add(work("a", members=16))
    assert engine.room() == 1  # for two members, in groups of sixteen
    engine.add(work("b", members=1))
    assert engine.room() == 1
    engine.add(work("c", members=1))
    assert engine.room() == 0
    engine.step()
    assert (engine.load.running, engine.load.waiting) == (16, 2)

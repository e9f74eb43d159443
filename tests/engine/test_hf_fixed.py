"""Fixed shapes: a member's tokens and log-probs are the same bits, whoever else is there."""

from __future__ import annotations

import random

import pytest
import torch
from engine_models import CONFIGS, plain_logprobs, tiny
from engine_work import Key, by_member, drain, flip_to, logprobs, tokens, versions, work
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pipeline.bus.chunks import head
from pipeline.messages import Completion, Work
from services.inference.engines.hf.engine import HfEngine

Bits = dict[Key, tuple[bytes, bytes, object]]


def engine_of(name: str = "llama", *, seed: int = 0, dtype=torch.float32, **options) -> HfEngine:
    defaults = {"boot": "b", "end_ids": frozenset({0, 5}), "slots": 7, "max_length": 91}
    model = odd_widths() if name == "odd_widths" else tiny(name, seed=seed)
    engine = HfEngine(model.to(dtype), **(defaults | options), fixed_shapes=True)
    flip_to(engine, 0)
    return engine


def odd_widths() -> PreTrainedModel:
    """No width is a multiple of what a vector instruction takes, so that rows share some."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=29,
        hidden_size=20,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.eval()


def groups(count: int = 5, **sampling: float) -> list[Work]:
    """Prompts of 1, 4, 7… tokens, two members each."""
    options = {"members": 2, "max_tokens": 30, **sampling}
    return [work(f"g{g}", prompt=range(1, 2 + 3 * g), **options) for g in range(count)]


def bits(done: dict[Key, Completion]) -> Bits:
    return {key: (c.ids, c.logprobs, c.kept) for key, c in done.items()}


def all_of(engine: HfEngine, todo: list[Work]) -> Bits:
    for group in todo:
        engine.add(group)
    return bits(drain(engine))


def handed_over(first: HfEngine, second: HfEngine, todo: list[Work], steps: int) -> Bits:
    """Parked after so many steps, and gone on with by the other, in another order."""
    for group in todo:
        first.add(group)
    done = by_member(c for _ in range(steps) for c in first.step())
    parked = first.park()
    started = {(prefix.group, prefix.member) for prefix in parked} | done.keys()
    for group in reversed(todo):
        mine = [prefix for prefix in parked if prefix.group == group.prompt.group]
        left = [m for m in group.todo if (group.prompt.group, m) not in started]
        rest = [*(prefix.member for prefix in mine), *left]
        if rest:
            second.add(
                Work(prompt=group.prompt, todo=tuple(rest), prefixes={p.member: p for p in mine})
            )
    return bits(done | drain(second))


CASES = [(name, torch.float32, {}) for name in CONFIGS]
CASES += [("llama", torch.float32, {"top_p": 0.8, "top_k": 9})]
CASES += [("qwen2_grouped_heads", torch.bfloat16, {})]
CASES += [("odd_widths", torch.float32, {"members": 3, "max_tokens": 60})]


@pytest.mark.parametrize(("name", "dtype", "sampling"), CASES)
def test_a_member_is_the_same_bits_alone_crowded_reordered_and_handed_over(
    name: str, dtype: torch.dtype, sampling: dict[str, float]
) -> None:
    todo = groups(**sampling)
    crowd = all_of(engine_of(name, dtype=dtype), todo)
    alone: Bits = {}
    engine = engine_of(name, dtype=dtype)
    for group in todo:
        for m in group.todo:
            alone |= all_of(engine, [Work(prompt=group.prompt, todo=(m,))])
    mixed = random.Random(3).sample(todo, len(todo))
    assert crowd == alone == all_of(engine_of(name, dtype=dtype), mixed)
    pair = engine_of(name, dtype=dtype), engine_of(name, dtype=dtype, boot="c")
    assert crowd == handed_over(*pair, todo, 13)


def test_without_them_a_neighbour_may_change_a_bit() -> None:
    """Else the test above would show nothing."""

    def loose() -> HfEngine:
        engine = HfEngine(tiny(), boot="b", end_ids=frozenset({0, 5}), slots=7)
        flip_to(engine, 0)
        return engine

    todo = groups()
    crowd = all_of(loose(), todo)
    alone = {k: v for group in todo for k, v in all_of(loose(), [group]).items()}
    assert crowd != alone


def test_staged_weights_give_the_same_bits_as_loaded_ones() -> None:
    loaded, staged = engine_of(seed=1), engine_of(seed=0)
    flip_to(loaded, 1)
    flip_to(staged, 1, tiny(seed=1))
    assert all_of(loaded, groups()) == all_of(staged, groups())


@pytest.mark.parametrize("name", ["llama", "mistral_all_sliding"])
def test_log_probs_are_those_of_a_plain_forward_pass(name: str) -> None:
    todo = groups()
    for key, (ids, logps, _) in all_of(engine_of(name), todo).items():
        prompt = [*range(1, 2 + 3 * int(key[0][1:]))]
        made = Completion(group=key[0], member=key[1], ids=ids, logprobs=logps, spans=())
        plain = plain_logprobs(tiny(name), prompt, tokens(made))
        assert (torch.tensor(logprobs(made)) - plain).abs().max().item() <= 1e-4


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_what_is_read_again_is_neither_drawn_nor_counted_again(swap: str) -> None:
    """A flip in the middle: with recompute the rows read what they have under the new weights."""
    engine = engine_of(swap=swap, end_ids=frozenset())
    engine.add(work(members=3, max_tokens=20))
    for _ in range(8):
        engine.step()
    before = {p.member: p.ids for p in engine.prefixes()}
    flip_to(engine, 1, tiny(seed=1))
    rows = []
    done: list[Completion] = []
    while engine.busy:
        done += engine.step()
        rows.append(engine.last_step.rows)
    assert sum(rows) == 3 * 12
    assert rows[0] == (0 if swap == "recompute" else 3)
    for completion in done:
        assert completion.ids[:32] == before[completion.member]
        assert versions(completion) == [0] * 8 + [1] * 12
    if swap == "recompute":
        again = engine_of(seed=1, end_ids=frozenset(), boot="b")
        prefixes = [head(completion, 8) for completion in done]
        again.add(work(members=3, max_tokens=20, prefixes=prefixes))
        assert bits(drain(again)) == bits(by_member(done))


def test_parking_in_the_middle_of_reading_again_loses_nothing() -> None:
    first = engine_of(end_ids=frozenset())
    first.add(work(members=2, max_tokens=30))
    for _ in range(12):
        first.step()
    whole = first.park()
    second, third = engine_of(boot="c"), engine_of(boot="d", end_ids=frozenset())
    second.add(work(members=2, max_tokens=30, prefixes=whole))
    for _ in range(5):
        second.step()
    parked = second.park()
    assert [(p.ids, p.logprobs, p.spans) for p in parked] == [
        (p.ids, p.logprobs, p.spans) for p in whole
    ]
    third.add(work(members=2, max_tokens=30, prefixes=parked))
    assert bits(drain(third)) == all_of(
        engine_of(end_ids=frozenset()), [work(members=2, max_tokens=30)]
    )

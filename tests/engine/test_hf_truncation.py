"""Top-k, top-p and min-p from the embedded engine to the trainer; prompts prefilled once."""

from __future__ import annotations

import itertools
from array import array
from copy import deepcopy

import pytest
import torch
from engine_models import CONFIGS, plain_logprobs, planted, tiny
from engine_work import Key, drain, flip_to, logprobs, tokens, work
from made import build, consider, rules
from msgspec.structs import replace
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from pipeline.messages import Completion, Group, Kept, Member, Score, Work
from pipeline.model.packed import evaluate
from pipeline.model.sampling import logprobs as logprobs_of
from pipeline.model.truncation import Limits, keep, recorded
from pipeline.protocols import Pack
from services.inference.engines.hf.engine import HfEngine

EVERY = [
    {"temperature": t, "top_p": p, "top_k": k, "min_p": m}
    for t, p, k, m in itertools.product((1.0, 0.7), (1.0, 0.8), (0, 5), (0.0, 0.1))
]


def engine_of(model: PreTrainedModel, **options) -> HfEngine:
    engine = HfEngine(model, **{"boot": "b", "end_ids": frozenset({0}), **options})
    flip_to(engine, 0)
    return engine


def sampled(engine: HfEngine, works: list[Work]) -> dict[Key, Completion]:
    for one in works:
        engine.add(one)
    return drain(engine)


def packs_of(works: list[Work], done: dict[Key, Completion], **options) -> tuple[Pack, ...]:
    """As the trainer builds them of these groups, with rewards that differ."""
    judged = []
    for one in works:
        members = {
            m: Member(completion=done[one.prompt.group, m], score=Score(reward=float(m % 2)))
            for m in one.todo
        }
        group = Group(prompt=one.prompt, start_step=0, members=members)
        judged.append(consider(group, rules(step=0)))
    batch = build(judged, rules(step=0), **{"pack_tokens": 300, **options})
    assert batch.tokens == sum(c.tokens for c in done.values()), batch.fates
    return batch.packs


def worst_gap(model: PreTrainedModel, packs: tuple[Pack, ...], **options) -> float:
    """Of the trainer's log-prob from the engine's."""
    with torch.no_grad():
        seen = [(evaluate(model, pack, **options).logp - pack.behaviour).abs() for pack in packs]
    return max(gap[pack.weight > 0].max().item() for gap, pack in zip(seen, packs, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_C002_the_trainers_log_probs_are_the_engines_however_it_was_sampled(name: str) -> None:
    """All sixteen combinations share the passes of one engine and the packs of one step."""
    works = [work(f"g{i}", seed=3, prompt=range(1, 3 + i), **how) for i, how in enumerate(EVERY)]
    done = sampled(engine_of(tiny(name), slots=23), works)
    truncated = [c for c in done.values() if c.kept]
    assert len(done) == 64 and len(truncated) == 56
    packs = packs_of(works, done)
    assert worst_gap(tiny(name), packs) <= 1e-4
    assert worst_gap(tiny(name), packs, chunk_elements=200) <= 1e-4
    whole = [pack._replace(kept_counts=0 * pack.kept_counts) for pack in packs]
    assert worst_gap(tiny(name), tuple(whole)) > 0.1  # else the sets would not have mattered


def constant(logits: list[float]) -> PreTrainedModel:
    """A model whose logits are these, whatever it reads."""
    config = deepcopy(CONFIGS["llama"])
    config.tie_word_embeddings, config.vocab_size = False, len(logits)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[:] = torch.tensor(logits)[:, None] / config.hidden_size
    return model.eval()


def ratios(logits: list[float], **how: float) -> dict[int, tuple[float, float]]:
    """Of each id that was drawn: the engine's log-prob, and the trainer's ratio to it."""
    works = [work(prompt=[1], members=40, max_tokens=3, **how)]
    done = sampled(engine_of(constant(logits), end_ids=frozenset()), works)
    (pack,) = packs_of(works, done, pack_tokens=1000)
    logp = evaluate(constant(logits), pack).logp.detach()
    inside = pack.weight > 0
    found = zip(pack.ids[inside].tolist(), pack.behaviour[inside], logp[inside], strict=True)
    return {token: (mine.item(), (yours - mine).exp().item()) for token, mine, yours in found}


def test_C001_the_ratio_is_one_at_a_temperature_that_is_not() -> None:
    seen = ratios([2.0, 1.0, 0.0], temperature=0.5)
    assert seen.keys() == {0, 1, 2}
    assert seen[1][0] == pytest.approx(-2.1429, abs=1e-4)
    assert [ratio for _, ratio in seen.values()] == pytest.approx([1.0] * 3, abs=1e-6)


def test_C002_the_ratio_is_one_where_the_engine_cut_the_distribution() -> None:
    seen = ratios(torch.tensor([0.5, 0.3, 0.2]).log().tolist(), top_p=0.8)
    assert seen.keys() == {0, 1}
    assert seen[0][0] == pytest.approx(torch.tensor(0.625).log().item(), abs=1e-6)
    assert [ratio for _, ratio in seen.values()] == pytest.approx([1.0] * 2, abs=1e-6)


def test_rows_that_truncate_change_nothing_for_those_that_do_not() -> None:
    plain = [work("plain", prompt=[4, 5], max_tokens=40)]
    beside = [work("cut", prompt=[6], top_p=0.5), work("greedy", temperature=0.0, top_p=0.5)]
    alone, mixed = sampled(engine_of(tiny()), plain), sampled(engine_of(tiny()), plain + beside)
    for key, completion in alone.items():
        assert mixed[key].ids == completion.ids
        assert logprobs(mixed[key]) == pytest.approx(logprobs(completion), abs=1e-5)
    assert {group for (group, _), c in mixed.items() if c.kept} == {"cut"}
    assert set(logprobs(mixed["greedy", 0])) == {0.0}


def test_a_truncated_members_draws_do_not_depend_on_its_neighbours() -> None:
    mine = {"prompt": (7, 8, 9), "top_p": 0.7, "min_p": 0.02, "max_tokens": 40}
    alone = sampled(engine_of(tiny()), [work("g", todo=[2], **mine)])["g", 2]
    others = [work(f"n{i}", prompt=range(1, 3 + i), **EVERY[i]) for i in range(12)]
    for works in ([work("g", **mine), *others], [*others, work("g", **mine)]):
        crowded = sampled(engine_of(tiny(), slots=9), works)["g", 2]
        assert (crowded.ids, crowded.kept) == (alone.ids, alone.kept)
        assert logprobs(crowded) == pytest.approx(logprobs(alone), abs=1e-5)


def test_a_kept_set_of_the_whole_vocabulary_has_no_ids() -> None:
    done = sampled(engine_of(tiny()), [work(top_k=32, members=1), work("h", top_k=1, members=1)])
    whole, one = done["g", 0], done["h", 0]
    assert whole.kept and whole.kept.ids == b"" and set(array("i", whole.kept.counts)) == {0}
    assert one.kept and one.kept.ids == one.ids and set(logprobs(one)) == {0.0}
    plain = plain_logprobs(tiny(), [1, 2, 3], tokens(whole))
    assert logprobs(whole) == pytest.approx(plain.tolist(), abs=1e-4)


class Prefilled:
    """How many tokens an engine reads in prefills, step by step."""

    def __init__(self, engine: HfEngine) -> None:
        self._engine, self._read = engine, 0
        embedding = engine._passes._model.get_input_embeddings()
        embedding.register_forward_hook(lambda module, args, output: self._add(args[0].shape))

    def _add(self, shape: torch.Size) -> None:
        self._read += shape.numel() if shape[1] > 1 else 0

    def of_a_step(self) -> int:
        self._read = 0
        self._engine.step()
        return self._read


def test_a_prompt_is_prefilled_once_though_its_members_find_a_slot_one_by_one() -> None:
    engine = engine_of(tiny(), slots=3, end_ids=frozenset(range(4)))
    engine.add(group := work("g", prompt=range(1, 21), members=24))
    seen, read, rows, steps, alone = Prefilled(engine), 0, 0, 0, 0
    while engine.busy:
        alone += engine._rows.count == 0
        read += seen.of_a_step()
        rows, steps = rows + engine.last_step.rows, steps + 1
    assert read == 19 * alone
    assert alone <= 2  # by chance all three may end in one step
    whole = sampled(engine_of(tiny(), end_ids=frozenset(range(4))), [group])
    assert rows == sum(completion.tokens for completion in whole.values())
    assert steps > 24 / 3 * 1.5  # they did not come in three waves
    engine.add(work("g", prompt=range(1, 21), todo=[0]))
    assert seen.of_a_step() == 19  # nobody was left to copy from


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_late_members_copy_their_prompt_from_one_that_is_in_flight(swap: str) -> None:
    engine = engine_of(tiny(), slots=4, swap=swap, end_ids=frozenset())
    long, late = (
        work("g", prompt=range(1, 21), todo=[0], max_tokens=60),
        [work("g", prompt=range(1, 21), todo=[m], max_tokens=60) for m in (1, 2, 3)],
    )
    engine.add(long)
    seen = Prefilled(engine)
    assert seen.of_a_step() == 19
    for one in late[:2]:
        engine.add(one)
        assert seen.of_a_step() == 0
    engine.add(late[2])
    done = drain(engine)
    fresh = sampled(engine_of(tiny(), end_ids=frozenset()), [long, *late])
    for key, completion in fresh.items():
        assert done[key].ids == completion.ids
        assert logprobs(done[key]) == pytest.approx(logprobs(completion), abs=1e-5)


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_C018_a_late_member_never_starts_from_keys_of_older_weights(swap: str) -> None:
    """Under keep its siblings go on with theirs, and it alone prefills; the next copies from it."""
    first, second = tiny(seed=0), tiny(seed=1)
    engine = engine_of(first, swap=swap, end_ids=frozenset())
    prompt = list(range(1, 21))
    engine.add(work("g", prompt=prompt, todo=[0, 1], max_tokens=60))
    engine.step()
    flip_to(engine, 1, second)
    seen = Prefilled(engine)
    engine.add(work("g", prompt=prompt, todo=[2], max_tokens=30))
    assert seen.of_a_step() == {"keep": 19, "recompute": 2 * 20}[swap]
    engine.add(work("g", prompt=prompt, todo=[3], max_tokens=30))
    assert seen.of_a_step() == 0
    done = drain(engine)
    fresh = engine_of(tiny(seed=1), end_ids=frozenset())
    expected = sampled(fresh, [work("g", prompt=prompt, todo=[2, 3], max_tokens=30)])
    for key, completion in expected.items():
        assert done[key].ids == completion.ids
        assert logprobs(done[key]) == pytest.approx(logprobs(completion), abs=1e-4)


def test_siblings_copy_from_a_member_that_was_resumed() -> None:
    first, second = engine_of(tiny()), engine_of(tiny(), slots=2)
    whole = sampled(engine_of(tiny()), [group := work(prompt=range(1, 21), members=3)])
    first.add(replace(group, todo=(1,)))
    for _ in range(4):
        first.step()
    prefix = first.park()[0]
    seen = Prefilled(second)
    second.add(replace(group, todo=(1, 0, 2), prefixes={1: prefix}))
    assert seen.of_a_step() == 20 + 3
    for key, completion in drain(second).items():
        assert completion.ids == whole[key].ids
        assert logprobs(completion) == pytest.approx(logprobs(whole[key]), abs=1e-5)


def test_a_prompts_keys_are_those_of_a_row_and_not_of_its_place() -> None:
    """Rows move when others end: who copies must find the prompt where it is by then."""
    engine = engine_of(tiny(), slots=4, end_ids=frozenset())
    engine.add(work("short", prompt=[9, 8, 7, 6], todo=[0], max_tokens=3))
    engine.add(work("g", prompt=range(1, 21), todo=[0], max_tokens=50))
    for _ in range(4):
        engine.step()
    engine.add(work("short", prompt=[9, 8, 7, 6], todo=[1], max_tokens=9))
    engine.add(work("g", prompt=range(1, 21), todo=[1], max_tokens=9))
    seen = Prefilled(engine)
    assert seen.of_a_step() == 3
    ids = {key: tokens(completion) for key, completion in drain(engine).items()}
    fresh = sampled(
        engine_of(tiny(), end_ids=frozenset()),
        [work("g", prompt=range(1, 21), todo=[1], max_tokens=9)],
    )
    assert ids["g", 1] == tokens(fresh["g", 1])


def test_the_version_of_a_prompts_keys_moves_with_their_row() -> None:
    engine = engine_of(tiny(seed=0), swap="keep", end_ids=frozenset())
    engine.add(work("old", todo=[0], max_tokens=3))
    engine.step()
    flip_to(engine, 1, tiny(seed=1))
    engine.add(work("g", prompt=range(1, 21), todo=[0], max_tokens=60))
    for _ in range(2):
        engine.step()  # "old" ends, and "g" takes its place
    seen = Prefilled(engine)
    engine.add(work("g", prompt=range(1, 21), todo=[1], max_tokens=20))
    assert engine._rows.count == 1 and seen.of_a_step() == 0


def test_C002_what_is_recorded_is_what_the_members_own_limits_keep() -> None:
    """By one plain forward pass over each member, where nobody else's limits are near."""
    works = [work(f"g{i}", seed=3, prompt=range(1, 3 + i), **how) for i, how in enumerate(EVERY)]
    done = sampled(engine_of(tiny(), slots=23), works)
    model = tiny()
    for one, how in zip(works, EVERY, strict=True):
        prompt = array("i", one.prompt.ids).tolist()
        for member in one.todo:
            completion = done[one.prompt.group, member]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + tokens(completion)])).logits[0]
            rows = logprobs_of(logits[len(prompt) - 1 : -1], torch.tensor(how["temperature"]))
            columns = (torch.tensor([how[key]] * len(rows)) for key in ("top_k", "top_p", "min_p"))
            counts, ids = recorded(keep(rows, Limits(*columns)))
            kept = completion.kept or Kept(counts=bytes(4 * completion.tokens), ids=b"")
            assert array("i", kept.counts).tolist() == counts.tolist()
            assert array("i", kept.ids).tolist() == ids.tolist()


def test_a_planted_model_is_certain_under_any_truncation() -> None:
    works = [work(f"g{i}", seed=1, **how) for i, how in enumerate(EVERY)]
    done = sampled(engine_of(planted(7), end_ids=frozenset()), works)
    assert {token for c in done.values() for token in tokens(c)} == {7}

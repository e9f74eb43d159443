"""Runs that imitate, distil and hold to a reference: what their records replay, what is told."""

from __future__ import annotations

import json
import re
import struct
from functools import partial
from pathlib import Path

import pytest
import torch
from made import build, consider, group, member, plain_logprobs, rules, tiny_model
from msgspec.structs import replace
from planted import MODEL, TOKENS, Lead, Stream, feed, made_run, wait_until
from torch import Tensor
from transformers import LlamaForCausalLM

from pipeline.errors import ConfigError
from pipeline.messages import Score, Teaching
from pipeline.model.teaching import teach
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Drawn, Example, Pack
from pipeline.run import Distillation, Imitation, Objective, Reference, Run
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE
from services.training.backends.torch import TorchBackend
from services.training.divergence import k2
from services.training.imitation import Examples
from services.training.losses import cispo
from services.training.objective import Objective as Composed
from services.training.optimize import act_alone
from services.training.records import Records
from services.training.reference import Reference as Held
from services.training.reference import Referred, reference_of
from services.training.replay import replay
from services.training.streams import Coefficients

LINES = [("3,1", "1,3"), ("4,2,2", "2,2,4"), ("7", "7" * 300), ("5", 5), ("9,8", "8,9")]
"""A prompt and its answer; the third is longer than the context, the fourth no text."""


class Rows(list[Example]):
    """A data set in memory."""

    def digest(self) -> str:
        return "rows"


ROWS = Rows(Example(prompt=prompt, reference=answer) for prompt, answer in LINES)


def examples(per_step: int = 2, seed: int = 1) -> Examples:
    settings = Imitation(data="jsonl", per_step=per_step)
    return Examples(ROWS, settings, Tokenizer(str(MODEL)), seed=seed, context=256)


def test_examples_are_a_function_of_seed_and_batch() -> None:
    """Three can be used: each epoch of three has each of them once."""
    drawn = [one for batch in range(1, 7) for one in examples()(batch)]
    assert drawn == [one for batch in range(1, 13) for one in examples(per_step=1)(batch)]
    epochs = [drawn[i : i + 3] for i in range(0, 12, 3)]
    assert all(len({one.answer for one in epoch}) == 3 for epoch in epochs)
    assert drawn != [one for batch in range(1, 7) for one in examples(seed=2)(batch)]


def test_an_example_is_prompt_and_answer_with_the_end_token_once() -> None:
    tokenizer = Tokenizer(str(MODEL))
    for one in examples(per_step=3)(1):
        ids = struct.unpack(f"<{one.tokens}i", one.answer)
        assert ids.count(ids[-1]) == 1 and tokenizer.decode(one.answer) in ("1,3", "2,2,4", "8,9")
        assert one.prompt == tokenizer.encode(tokenizer.decode(one.prompt))


def test_data_without_a_text_to_imitate_is_refused() -> None:
    settings = Imitation(data="jsonl")
    with pytest.raises(ConfigError, match="none of its 1 examples can be imitated"):
        Examples(Rows([ROWS[3]]), settings, Tokenizer(str(MODEL)), seed=1)


def test_an_example_without_a_prompt_is_left_out_and_the_remedy_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Imitation(data="jsonl")
    rows = Rows([Example(prompt="", reference="1"), ROWS[0]])
    Examples(rows, settings, Tokenizer(str(MODEL)), seed=1)
    assert "example 0: its prompt has no tokens; write a prompt" in caplog.text


def test_what_the_tokenizer_has_no_ids_for_is_told_by_the_key_of_its_data(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = Rows([Example(prompt="a?", reference="1"), Example(prompt="1", reference="?"), ROWS[0]])
    Examples(rows, Imitation(data="jsonl"), Tokenizer(str(MODEL)), seed=1)
    for number, what in enumerate(("prompt", "answer")):
        line = f"not imitated: objective.imitation.data, example {number} = "
        assert re.search(f"{line}.* no ids for this {what}", caplog.text), caplog.text


def test_a_reference_is_the_first_policy_and_then_that_of_every_second_step() -> None:
    judged = [consider(group("g", [member([5, 6], 1.0), member([7, 8], 0.0)]), RULES)]
    (pack,) = build(judged, RULES, pack_tokens=1000).packs
    held, model = Held(tiny_model(), every=2), tiny_model()
    rank = Referred(TorchBackend(model), held)
    objective = Composed(cispo, kl=partial(k2, coefficient=0.1), refer=held.filled)
    after, seen = [], []
    for _ in range(6):
        after.append(plain_logprobs(model, [3, 4, 5, 6], 1.0).detach())
        seen.append(held.filled(pack).reference[1:4])
        assert act_alone(rank, objective, [pack], 1e-2).result.finite
    for steps, policy in enumerate((0, 0, 2, 2, 4, 4)):
        torch.testing.assert_close(seen[steps], after[policy], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(after[0], after[2], atol=1e-3)


RULES = rules()


def test_a_reference_that_was_loaded_moves_when_it_would_have_and_not_by_a_step_not_taken(
    tmp_path: Path,
) -> None:
    """Every second step; the trainer between the two does nothing but load and save."""
    judged = [consider(group("g", [member([5, 6], 1.0), member([7, 8], 0.0)]), RULES)]
    (pack,) = build(judged, RULES, pack_tokens=1000).packs
    broken = pack._replace(advantage=pack.advantage * float("inf"))
    ranks = [Referred(TorchBackend(tiny_model()), Held(tiny_model(), every=2)) for _ in range(3)]

    def step(rank: Referred, one: Pack) -> None:
        assert act_alone(rank, Composed(cispo), [one], 1e-2).result.finite == (one is pack)

    def seen(rank: Referred) -> Tensor:
        return rank._reference.filled(pack).reference

    for one in (pack, pack):
        step(ranks[0], one)
    moved = ranks[0].logprobs(pack)
    for one in (broken, pack):
        step(ranks[0], one)
    for number, rank in enumerate(ranks[1:]):
        (tmp_path / f"{number}").mkdir()
        ranks[number].snapshot().write(str(tmp_path / f"{number}"))
        rank.load_state(str(tmp_path / f"{number}" / "state"))
    assert all(torch.allclose(seen(rank), moved, atol=1e-5) for rank in ranks)
    for one in (broken, pack):
        step(ranks[2], one)
    assert torch.allclose(seen(ranks[2]), ranks[2].logprobs(pack), atol=1e-5)
    assert not torch.allclose(seen(ranks[2]), moved, atol=1e-3)


def test_a_reference_of_another_architecture_is_refused_before_a_step() -> None:
    run = made_run("r", objective=Objective(kl={"use": "k2", "coefficient": 0.1}))
    with pytest.raises(ConfigError, match=r"^objective\.reference\.path = .*parameters differ"):
        reference_of(run, tiny_model())


def sampled(model: LlamaForCausalLM, number: int) -> list[tuple[list[int], list[float]]]:
    """Eight answers of eight tokens to the prompt [3, 4], with the log-probs of each token."""
    rows = torch.tensor([[3, 4]] * 8)
    noise, told = torch.manual_seed(number), []
    for _ in range(8):
        with torch.no_grad():
            logp = model(input_ids=rows).logits[:, -1].log_softmax(-1)
        drawn = torch.multinomial(logp.exp(), 1, generator=noise)
        told.append(logp.gather(1, drawn))
        rows = torch.cat([rows, drawn], dim=1)
    logprobs = torch.cat(told, dim=1)
    return [*zip(rows[:, 2:].tolist(), logprobs.tolist(), strict=True)]


def lesson(teacher: LlamaForCausalLM, ids: list[int], top_k: int) -> Score:
    prompt = struct.pack("<2i", 3, 4)
    said = teach(teacher, ids, Drawn(prompt=prompt, logprobs=b"", temperature=1.0), top_k=top_k)
    teaching = Teaching(
        logprobs=said.logprobs.numpy().tobytes(),
        top_ids=said.top_ids.int().numpy().tobytes(),
        top_logprobs=said.top_logprobs.numpy().tobytes(),
    )
    return Score(reward=0.0, outcome=0.0, teaching=teaching)


@pytest.mark.parametrize("top_k", [0, 8])
def test_a_policy_that_has_nothing_but_a_teacher_comes_to_resemble_it(top_k: int) -> None:
    student, teacher = tiny_model(seed=5), tiny_model(seed=9)
    backend, gaps = TorchBackend(student, weight_decay=0.0), []
    alone = RULES._replace(streams=Coefficients(distillation=1.0))
    for number in range(12):
        made = [
            replace(member(ids, 0.0, logprobs=logprobs), score=lesson(teacher, ids, top_k))
            for ids, logprobs in sampled(student, number)
        ]
        judged = [consider(group(f"g{n}", [one]), alone) for n, one in enumerate(made)]
        packs = build(judged, alone, pack_tokens=1000).packs
        done = act_alone(backend, Composed(cispo), packs, 1.2e-2)
        assert done.result.finite and not any((pack.weight > 0).any() for pack in packs)
        gaps.append(done.statistics.streams()["kl_loss"])
    first, last = sum(gaps[:3]) / 3, sum(gaps[-3:]) / 3
    assert last < 0.5 * first, (first, last)


@pytest.fixture
def run(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """All streams, and a reference that moves between two checkpoints."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"prompt": prompt, "reference": answer}) for prompt, answer in LINES]
    Path("given.jsonl").write_text("\n".join(lines))
    objective = Objective(
        kl={"use": "k3", "coefficient": 0.1},
        reference=Reference(every=2),
        imitation=Imitation(data={"use": "jsonl", "path": "given.jsonl"}, per_step=2),
        distillation=Distillation(coefficient=0.5),
    )
    return made_run(
        run_name,
        steps=9,
        weights={"use": "shm", "folder": str(tmp_path)},
        training=Keys(learning_rate=1e-3, checkpoint_every=3),
        objective=objective,
    )


def taught(reward: float) -> Score:
    ids = struct.pack(f"<{2 * TOKENS}i", *range(3, 3 + 2 * TOKENS))
    likeliest = struct.pack(f"<{2 * TOKENS}f", *[-0.9, -1.1] * TOKENS)
    single = struct.pack(f"<{TOKENS}f", *[-1.0] * TOKENS)
    teaching = Teaching(logprobs=single, top_ids=ids, top_logprobs=likeliest)
    return Score(reward=reward, outcome=reward, teaching=teaching)


def test_a_run_of_all_streams_goes_on_and_is_replayed_bit_for_bit(
    stream: Stream, lead: Lead, run: Run
) -> None:
    """Stopped after 3 steps, of which the second moved the reference, and after 5 by a record."""
    first = lead()
    wait_until(lambda: stream.bus.state().version >= 0, "version")
    feed(stream, 3, taught(0.0), taught(1.0))
    assert first.stop() == EXIT_DONE
    given = Path("given.jsonl").read_text()
    Path("given.jsonl").write_text(given.replace("1,3", "3,1"))
    with pytest.raises(ConfigError, match=r"^objective\.imitation\.data = .* was made with"):
        lead()
    Path("given.jsonl").write_text(given)
    second = lead()
    wait_until(lambda: stream.bus.state().version == second.service.version, "version")
    feed(stream, 1, taught(0.0), taught(1.0))
    feed(stream, 1, taught(1.0), taught(1.0))
    assert second.stop() == EXIT_DONE
    recorded = Records(run.folder).read(5).examples
    assert second.service.examples and recorded == second.service.examples(5)
    Path("given.jsonl").unlink()
    told: list[str] = []
    assert replay(run, say=told.append), told
    assert [line.split(",")[0] for line in told[:2]] == [
        f"step {n}: the same weights" for n in (3, 5)
    ]
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["distilled_tokens"] for line in lines] == [4 * TOKENS] * 5
    assert all(line["imitated_tokens"] > 0 and line["ce_loss"] > 0 for line in lines)
    assert [line["tokens"] for line in lines] == [4 * TOKENS] * 5
    ledger = stream.ledger()
    assert ledger["generated"] == ledger["trained"] and stream.balance() == (0, 0)

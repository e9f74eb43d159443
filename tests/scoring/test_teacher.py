"""A teacher and a penalty with a real model: what they say, through workers, bus and blobs."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planting import Plant
from transformers import AutoModelForCausalLM

from pipeline.errors import ConfigError
from pipeline.messages import Beat, Kept, Score, Teaching
from pipeline.model.teaching import teach
from pipeline.protocols import Answer, Drawn, Verdict
from pipeline.verdicts import Fault, Term, checked, total
from services.scoring.scorers.models.teacher import KlPenalty, Teacher

MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "demo" / "model")
PROMPT, ANSWER = [3, 4, 2], [8, 4, 1, 7, 0]
TEACHER = {"use": "teacher", "path": MODEL}


def text_of(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def floats(raw: bytes) -> list[float]:
    return np.frombuffer(raw, "<f4").tolist()


def textbook(temperature: float = 1.0) -> torch.Tensor:
    """Log-probs [T, V] at each token of the answer."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT + ANSWER])).logits[0]
    return (logits[len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)


def drawn(temperature: float = 1.0, kept: Kept | None = None) -> Drawn:
    return Drawn(
        prompt=struct.pack("<3i", *PROMPT),
        logprobs=struct.pack("<5f", *[-1.0] * 5),
        temperature=temperature,
        kept=kept,
    )


def test_a_token_is_taught_under_the_distribution_that_it_was_drawn_from() -> None:
    """At a temperature, and the second one over ids 1, 4 and 6 alone: its two likeliest are."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    kept = Kept(counts=struct.pack("<5i", 0, 3, 0, 0, 0), ids=struct.pack("<3i", 1, 4, 6))
    said = teach(model, ANSWER, drawn(0.7, kept), top_k=4)
    logp = textbook(0.7)
    few = logp[1, [1, 4, 6]].log_softmax(-1)
    own = torch.stack([logp[t, ANSWER[t]] for t in range(5)])
    own[1] = few[1]
    torch.testing.assert_close(said.logprobs, own, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(said.top_logprobs[0], logp[0].topk(4).values, atol=1e-5, rtol=1e-5)
    assert said.top_ids[1, :3].tolist() == [[1, 4, 6][i] for i in few.argsort(descending=True)]
    assert said.top_logprobs[1, 3] == -torch.inf and said.top_ids[1, 3] == 0


def test_a_teacher_reaches_the_trainer_through_a_worker_and_the_bus(
    plant: Plant, serving: Callable[..., Any]
) -> None:
    plant.group([text_of(ANSWER), text_of(ANSWER)], prompt_text=text_of(PROMPT))
    penalty = {"use": "kl_penalty", "path": MODEL, "beta": 0.5}
    scorers = ["exact", {**TEACHER, "top_k": 2}, penalty]
    with serving(*scorers, model=MODEL, timeout_seconds=60.0):
        (group,) = plant.ready(1, seconds=60.0)
    logp = textbook()
    own = [float(logp[t, ANSWER[t]]) for t in range(5)]
    for member in group.members.values():
        score = member.score
        assert score and score.error is None and score.teaching
        assert floats(score.teaching.logprobs) == pytest.approx(own, abs=1e-4)
        top = logp.topk(2)
        assert floats(score.teaching.top_logprobs) == pytest.approx(top.values.flatten(), abs=1e-4)
        assert (
            np.frombuffer(score.teaching.top_ids, "<i4").tolist() == top.indices.flatten().tolist()
        )
        assert score.outcome == 0.0, "shaping leaves the outcome alone"
        assert score.reward == pytest.approx(-0.5 * (-5.0 - sum(own)), abs=1e-3)
        exact, teacher, _ = score.scorer.split("+")
        assert exact.startswith("exact/") and teacher.startswith(f"teacher/{MODEL}@")


def test_a_model_with_other_tokens_is_refused_with_both_sides(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    file.write_text(file.read_text().replace('"3": 7', '"3": 8').replace('"4": 8', '"4": 7', 1))
    with pytest.raises(ConfigError, match=rf"of 22 ids \(\w+\), and that of the policy, {MODEL}"):
        Teacher(path=str(tmp_path / "other"), policy=MODEL)


def test_a_teacher_that_was_never_made_is_refused_by_its_key() -> None:
    """And not looked for on the hub, which may take a minute to say no."""
    gone = "examples/demo/gone"
    with pytest.raises(ConfigError, match=r"^scoring\.scorers\.path = .*: there is no such folder"):
        Teacher(path=gone, policy=MODEL)


def test_teachings_of_more_than_a_megabyte_arrive_whole(plant: Plant) -> None:
    tokens, k = 20_000, 8
    plant.group(["a" * tokens])
    plant.bus.beat(Beat(service="scoring", instance="scoring", boot="scoring:1"))
    (lease,) = plant.bus.completions.draw("scoring:1", held=(), count=9)
    rng = np.random.default_rng(0)
    teaching = Teaching(
        logprobs=(-rng.random(tokens)).astype("<f4").tobytes(),
        top_ids=rng.integers(0, 22, (tokens, k)).astype("<i4").tobytes(),
        top_logprobs=(-rng.random((tokens, k))).astype("<f4").tobytes(),
    )
    score = Score(reward=0.0, outcome=0.0, teaching=teaching)
    assert plant.bus.completions.score("scoring:1", [(lease, score)]) == ["ok"]
    (group,) = plant.ready(1)
    assert group.members[0].score == score


def test_the_penalty_is_the_gap_at_sampling() -> None:
    answer = Answer(
        text="", prompt="", reference=None, finish="stop", ids=tuple(ANSWER), drawn=drawn()
    )
    reference = sum(float(textbook()[t, ANSWER[t]]) for t in range(5))
    verdict = KlPenalty(path=MODEL, policy=MODEL, beta=0.1)(answer)
    assert verdict.reward == pytest.approx(-0.1 * (-5.0 - reference), abs=1e-4)
    assert verdict.outcome == 0.0


def test_a_token_has_one_teacher() -> None:
    said = Verdict(reward=0.0, teaching=Teaching(logprobs=bytes(4)))
    assert total([Term("a"), Term("b")], [Verdict(reward=1.0), checked(said)]).teaching
    with pytest.raises(Fault, match="two scorers teach"):
        total([Term("a"), Term("b")], [said, said])

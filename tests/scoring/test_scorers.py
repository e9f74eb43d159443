"""The scorers that ship: what each counts as right, and what it cannot be talked into."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import reasoning_gym

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.messages import Score
from pipeline.metrics import Metrics
from pipeline.plugins import build
from pipeline.protocols import Answer, Verdict
from pipeline.run import Scoring as ScoringKeys
from pipeline.verdicts import checked
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers


def verdict(spec: Any, text: str, reference: object = "42") -> Verdict:
    scorer = build(SCORERS, spec, at="scoring.scorers")
    answer = Answer(text=text, prompt="", reference=reference, finish="stop")
    return checked(scorer(answer))


BOX = {"use": "regex", "pattern": r"\\boxed\{(\d+)\}", "group": 1}
AFTER_THINKING = {"use": "regex", "pattern": r"(?s)</think>.*\\boxed\{(?P<n>\d+)\}", "group": "n"}
THOUGHT = {"use": "regex", "pattern": r"(?s)^<think>.*?\w.*?</think>"}


@pytest.mark.parametrize(
    ("case", "spec", "text", "reward"),
    [
        ("right", "exact", " 42\n", 1.0),
        ("C053a", "exact", "We see 42 … so 42", 0.0),
        ("hedging", "exact", "41 42 43", 0.0),
        ("right", BOX, r"so \boxed{ 42}, no: \boxed{42}", 1.0),
        ("C053a", BOX, "We see 42 … so 42", 0.0),
        ("hedging", BOX, r"\boxed{41} or \boxed{42} or \boxed{43}", 0.0),
        ("changed its mind", BOX, r"\boxed{41}, no: \boxed{42}", 1.0),
        ("part of a number", BOX, r"\boxed{142}", 0.0),
        ("right", AFTER_THINKING, r"<think>\boxed{7}</think> \boxed{42}", 1.0),
        ("C053b", AFTER_THINKING, r"<think> … \boxed{42}", 0.0),
        ("a format", THOUGHT, "<think>\nso\n</think>a", 1.0),
        ("C056", THOUGHT, "<think></think>a", 0.0),
        ("nothing", BOX, "", 0.0),
        ("C015 of text", "exact", "\ud800", 0.0),
    ],
)
def test_C053_text_scorers_want_the_answer_and_not_a_mention_of_it(
    case: str, spec: Any, text: str, reward: float
) -> None:
    assert verdict(spec, text).reward == reward, case


def test_a_group_that_took_no_part_in_the_match_is_no_answer() -> None:
    assert verdict({"use": "regex", "pattern": r"(a)|b", "group": 1}, "b", "None").reward == 0.0


def test_a_reference_is_compared_as_it_is_written() -> None:
    assert verdict(BOX, r"\boxed{42}", 42).reward == 1.0


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"use": "regex", "pattern": "(a"}, "scoring.scorers.pattern = '(a': is no pattern"),
        (
            {"use": "regex", "pattern": "(?P<n>a)", "group": 2},
            "scoring.scorers.group = 2: the pattern has no such group; choose one of 0, 1, n",
        ),
        ({"use": "regex"}, "scoring.scorers.pattern: is required"),
        ({"use": "reasoning_gym", "extract": "["}, "scoring.scorers.extract = '[': is no pattern"),
    ],
)
def test_a_wrong_option_is_refused(spec: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, spec, at="scoring.scorers")
    assert str(caught.value).startswith(line)


NUMBER = {"use": "reasoning_gym", "extract": r"(-?\d+)\D*$"}


@pytest.mark.parametrize(
    ("spec", "text", "reward", "outcome"),
    [
        ("reasoning_gym", "<answer>{}</answer>", 1.0, 1.0),
        ("reasoning_gym", "<answer>0</answer> no: <answer>\n{}\n</answer>", 1.0, 1.0),
        ("reasoning_gym", "<answer>{}</answer> no: <answer>0</answer>", 0.0, 0.0),
        ("reasoning_gym", "{}", 0.0, 0.0),
        ("reasoning_gym", "<answer>{}", 0.0, 0.0),
        ("reasoning_gym", "<think>0</think><answer>{}</answer>", 1.0, 1.0),
        ("reasoning_gym", "<think> or <answer>{}</answer>", 0.0, 0.0),
        ("reasoning_gym", "<answer></answer>", 0.0, 0.0),
        ({"use": "reasoning_gym", "extract": ""}, " {} ", 1.0, 1.0),
        (NUMBER, "It makes {} in all.", 1.0, 1.0),
        (NUMBER, "{} or 7", 0.0, 0.0),
    ],
)
def test_reasoning_gym_grades_what_is_between_the_tags_or_what_a_pattern_finds(
    spec: Any, text: str, reward: float, outcome: float
) -> None:
    entry = reasoning_gym.create_dataset("products", size=1, seed=1)[0]
    given = verdict(spec, text.format(entry["answer"]), entry)
    assert (given.reward, given.outcome) == (reward, outcome)


def test_a_part_of_its_score_is_no_outcome() -> None:
    """The library gives a little for an answer that holds the right one."""
    entry = reasoning_gym.create_dataset("products", size=1, seed=1)[0]
    given = verdict({"use": "reasoning_gym", "extract": ""}, f"{entry['answer']}, I think", entry)
    assert 0 < given.reward < 1
    assert given.outcome == 0.0


def test_a_reference_that_is_no_entry_is_a_fault_and_no_zero() -> None:
    with pytest.raises((TypeError, KeyError)):
        verdict("reasoning_gym", "<answer>1</answer>", "42")


PATIENT = "strangers:patient"


def judged(text: str, *scorers: Any) -> Score:
    async def grade() -> Score:
        ensemble = make_ensemble(
            ScoringKeys(scorers=[*scorers]), numbers=Numbers(Metrics("scoring"))
        )
        await ensemble.start()
        try:
            return await ensemble(Answer(text=text, prompt="", reference="42", finish="stop"))
        finally:
            await ensemble.close()

    return asyncio.run(grade())


def test_a_weighted_list_with_a_gate_and_its_parts() -> None:
    digits = {"use": "regex", "pattern": r"^\d+$", "gate": True}
    half = {"use": "regex", "pattern": "4", "weight": 0.5}
    exact = {"use": "exact", "weight": 2.0}
    right = judged("42", digits, exact, half)
    assert (right.reward, right.outcome) == (2.5, 1.0)
    names = [*right.parts]
    called = [name.partition("/")[0] for name in names]
    assert called == ["regex", "exact", "regex#2"]
    assert [*right.parts.values()] == [1.0, 1.0, 1.0]
    assert right.scorer == "+".join(names)
    shut = judged(" 42", digits, exact, half)
    assert (shut.reward, shut.outcome) == (0.0, 1.0)
    assert shut.parts == dict(zip(names, [0.0, 1.0, 1.0], strict=True))


def test_a_scorer_on_the_loop_and_one_in_a_worker_add_up() -> None:
    both = judged("42", {"use": PATIENT, "weight": -0.25}, "exact")
    assert both.reward == 0.75
    assert judged("raise", "exact", {"use": PATIENT, "gate": True}).error == (
        "raised: TimeoutError: somebody else's"
    )

"""`exact`, `regex` and `overlong`: what they cannot be talked into, and their reasons."""

from __future__ import annotations

import time
from typing import Any

import pytest
from asked import told

from pipeline.protocols import Answer
from services.scoring.scorers.text.overlong import overlong

BOX = {"use": "regex", "pattern": r"\\boxed\{(\d+)\}", "group": 1}
SO = {"use": "regex", "pattern": r"(?s)</think>.*so (\d+)", "group": 1}
TAG = {"use": "regex", "pattern": "<think>"}


@pytest.mark.parametrize(
    ("case", "spec", "text", "reward", "why"),
    [
        ("right", "exact", " 42\n", 1.0, "right"),
        ("wrong", "exact", "43", 0.0, "wrong"),
        ("C053a", "exact", "So it is 42", 0.0, "wrong"),
        ("C053b", "exact", "<think>42", 0.0, "no_final_answer"),
        ("reasoning", "exact", "<think>41</think>\n42", 1.0, "right"),
        ("reasoning", "exact", "<think>42</think>\n41", 0.0, "wrong"),
        ("no width", "exact", "42\u200b", 0.0, "wrong"),
        ("wide", "exact", "\N{FULLWIDTH DIGIT FOUR}2", 0.0, "wrong"),
        ("right", BOX, r"\boxed{42}", 1.0, "right"),
        ("the last", BOX, r"\boxed{42} \boxed{41}", 0.0, "wrong"),
        ("none", BOX, "42", 0.0, "no_final_answer"),
        ("C053b", BOX, r"<think>\boxed{42}", 0.0, "no_final_answer"),
        ("C053b", BOX, r"<think>\boxed{42}</think> so it is", 0.0, "no_final_answer"),
        ("reasoning", BOX, r"<think>\boxed{41}</think> \boxed{42}", 1.0, "right"),
        ("reasoning", SO, "<think>so 41</think> so 42", 1.0, "right"),
        ("a pattern alone", TAG, "<think> hm", 1.0, "right"),
        ("a pattern alone", TAG, "hm", 0.0, "no_final_answer"),
    ],
)
def test_C053_only_what_follows_the_reasoning_is_compared(
    case: str, spec: Any, text: str, reward: float, why: str
) -> None:
    assert told(spec, text, "42") == (reward, why), case


@pytest.mark.parametrize("spec", ["exact", {**BOX, "pattern": r"boxed\{(.*)\}"}])
def test_C053b_reasoning_that_began_in_the_prompt_must_end(spec: Any) -> None:
    text = "42" if spec == "exact" else "boxed{42}"
    assert told(spec, text, "42", prompt="Q\n<think>\n")[0] == 0.0
    assert told(spec, f"hm</think>{text}", "42", prompt="Q\n<think>\n")[0] == 1.0


@pytest.mark.parametrize("spec", ["exact", {"use": "regex", "pattern": "(.*)", "group": 1}])
def test_letters_with_accents_are_alike_however_they_are_encoded(spec: Any) -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert told(spec, composed, apart)[0] == told(spec, apart, composed)[0] == 1.0
    assert told(spec, "cafe", composed)[0] == told(spec, "x2", "x\u00b2")[0] == 0.0


@pytest.mark.parametrize("spec", ["exact", BOX])
@pytest.mark.parametrize("reference", [None, True, "", " \n", ["42"], {"n": 42}])
def test_a_reference_that_is_no_text_is_a_fault_and_no_zero(spec: Any, reference: Any) -> None:
    """Not even where the answer is "None", or is as empty."""
    for text in ("None", "", "True", r"\boxed{42}"):
        with pytest.raises(ValueError, match="the reference is"):
            told(spec, text, reference)


def test_an_answer_that_is_too_long_says_so_and_a_short_one_nothing() -> None:
    asked = [Answer(text="", prompt="", reference=None, finish="", ids=(1,) * count, max_tokens=10)
             for count in (6, 8, 10)]  # fmt: skip
    verdicts = [overlong(answer, cache=4) for answer in asked]
    assert [(v.reward, v.outcome, v.reason) for v in verdicts] == [
        (0.0, 0.0, ""),
        (-0.5, 0.0, "too_long"),
        (-1.0, 0.0, "too_long"),
    ]


LONG = ["so it is " * 22_000, "answer: " * 25_000, "#### 1\n" * 28_000, r"\boxed{" * 28_000,
        "<answer>" * 25_000, "final answer" + " " * 200_000, "[" * 200_000, "```json\n" * 25_000,
        r"\boxed{1}" * 22_000 + " " * 9_000, "<think>" * 28_000]  # fmt: skip
SCHEMA: dict[str, Any] = {"use": "json_schema", "schema": {}}
OPTIONS = {"answer": "B", "choices": ["one", "two"]}


@pytest.mark.parametrize(
    ("spec", "reference"),
    [("exact", "1"), (BOX, "1"), ("choice", OPTIONS), ("numeric", 2), (SCHEMA, None),
     ({"use": "format", "tags": ["think", "answer"]}, None)],
    ids=str,
)  # fmt: skip
def test_C049_a_long_text_of_one_phrase_is_graded_at_once(spec: Any, reference: Any) -> None:
    for text in LONG:
        started = time.process_time()
        reward, _ = told(spec, text, reference)
        assert reward == float(spec == BOX and "boxed{1}" in text)
        assert time.process_time() - started < 1.0, text[:20]

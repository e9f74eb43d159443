"""`format`: tags in their order, each once and closed, and something in every one of them."""

from __future__ import annotations

from typing import Any

import pytest
from asked import verdict

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build

TAGS = {"use": "format", "tags": ["think", "answer"]}
LOOSE = {**TAGS, "outside": "anything"}
PARTLY = {**TAGS, "partial": 0.5}
ANSWER = {"use": "format", "tags": ["answer"]}
GOOD = "<think>so it is</think><answer>42</answer>"
UNSEEN = "\u200b\u2060\u00ad\u3164\u2800\ufe0f\u0301"


def asked(spec: Any, text: str, prompt: str = "") -> tuple[float, str]:
    found = verdict(spec, text, prompt=prompt)
    assert found.outcome == float(found.reward == 1.0)
    return found.reward, found.reason


@pytest.mark.parametrize("spec", [TAGS, LOOSE, PARTLY])
@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "\n<think>\nso it is\n</think>\n\n<answer>\n42\n</answer>\n",
        "<think>7</think><answer>\N{INFINITY}</answer>",
        "<think>\N{CJK UNIFIED IDEOGRAPH-56E0}</think> <answer>\\emptyset</answer>",
        "<think>is 1 < 2 and <b>so</b>?</think><answer>yes</answer>",
    ],
)
def test_what_has_all_tags_and_something_in_each_is_right(spec: Any, text: str) -> None:
    assert asked(spec, text) == (1.0, "right")


EMPTY = ["", " \n", "...", "\N{HORIZONTAL ELLIPSIS}", "---", "===", "-", "**", "$$", "()", UNSEEN,
         "\u200b", "\x00", "think", "Think", "<>", "~~~ |||", "<br>",
         "<b></b>", "<a/>", "\ufffc"]  # fmt: skip


@pytest.mark.parametrize("body", EMPTY)
def test_C056_an_empty_body_earns_nothing_or_a_part(body: str) -> None:
    text = f"<think>{body}</think><answer>42</answer>"
    assert asked(TAGS, text) == (0.0, "empty_body")
    assert asked(LOOSE, text) == (0.0, "empty_body")
    assert asked(PARTLY, text) == (0.25, "empty_body")


@pytest.mark.parametrize(
    ("case", "text", "part"),
    [
        ("C056", "<think></think>a", 0.0),
        ("C056", "<think></think><answer></answer>", 0.0),
        ("nothing", "", 0.0),
        ("no tag", "42", 0.0),
        ("one is missing", "<think>so</think>", 0.25),
        ("one is missing", "<answer>42</answer>", 0.25),
        ("not closed", "<think>so</think><answer>42", 0.25),
        ("not closed", "<think>so<answer>42</answer>", 0.25),
        ("not opened", "so</think><answer>42</answer>", 0.25),
        ("turned", "<answer>42</answer><think>so</think>", 0.0),
        ("nested", "<think>so<answer>42</answer></think>", 0.0),
        ("crossed", "<think>so<answer>42</think>7</answer>", 0.0),
        ("doubled", GOOD + GOOD, 0.0),
        ("doubled", "<think>a</think>" + GOOD, 0.0),
        ("doubled", "<think><think>so</think></think><answer>42</answer>", 0.0),
        ("doubled", GOOD + "</answer>", 0.0),
        ("doubled", "</think>" + GOOD, 0.0),
        ("other case", "<Think>so</Think><answer>42</answer>", 0.25),
        ("other tag", "<think >so</think><answer>42</answer>", 0.25),
        ("outside", GOOD + " bye", 0.5),
        ("outside", "well " + GOOD, 0.5),
        ("outside", "<think>so</think> and <answer>42</answer>", 0.5),
        ("outside", GOOD + "\u200b", 0.5),
    ],
)
def test_a_text_with_a_flaw_never_gets_the_maximum(case: str, text: str, part: float) -> None:
    assert asked(TAGS, text)[0] == 0.0
    assert asked(PARTLY, text)[0] == part
    if case != "outside":
        assert asked(LOOSE, text)[0] == 0.0


def test_anything_may_stand_around_the_tags_where_the_run_allows_it() -> None:
    assert asked(LOOSE, f"well {GOOD} bye") == (1.0, "right")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>so</think>\nIt is 42.", 1.0),
        ("<think>so</think>", 0.0),
        ("<think>so</think> ...", 0.0),
        ("<think></think>a", 0.0),
        ("well <think>so</think> 42", 0.0),
        ("<think>so</think> <think>so</think> 42", 0.0),
        ("so</think> 42", 0.0),
    ],
)
def test_C056_the_answer_can_have_to_stand_behind_the_tags(text: str, reward: float) -> None:
    spec = {"use": "format", "tags": ["think"], "outside": "behind"}
    assert asked(spec, text)[0] == reward


SHOWN = "Write <think> reasoning process here </think> <answer> answer here </answer>. What is 6*7?"
EXAMPLE = "<think>2 and 2</think><answer>42</answer> Now: 6*7?"


@pytest.mark.parametrize(
    ("prompt", "text", "reward"),
    [
        (SHOWN, "<think>Reasoning process here.</think><answer>42</answer>", 0.0),
        (SHOWN, "<think>so</think><answer>answer here</answer>", 0.0),
        (SHOWN, GOOD, 1.0),
        (EXAMPLE, GOOD, 1.0),
        (EXAMPLE, "<think>2 and 2</think><answer>42</answer>", 0.0),
        ("Q\n<think>\n", "so it is</think><answer>42</answer>", 1.0),
        ("Q\n<think>\n", "</think><answer>42</answer>", 0.0),
        ("Q\n<think>\n", GOOD, 0.0),
        ("Q <think> and <answer>", GOOD, 1.0),
    ],
)
def test_C056_a_template_that_is_copied_is_empty_and_a_tag_of_the_prompt_counts(
    prompt: str, text: str, reward: float
) -> None:
    assert asked(TAGS, text, prompt)[0] == reward


@pytest.mark.parametrize(
    ("prompt", "text", "reward"),
    [
        ("", "<think>so</think><answer>42</answer>", 1.0),
        ("Q <think>", "so</think><answer>42</answer>", 1.0),
        ("Q <think>", "<answer>42</answer>", 0.0),
        ("", "<think><answer>42</answer>", 0.0),
    ],
)
def test_C053b_where_no_tag_is_for_reasoning_only_what_follows_it_is_looked_at(
    prompt: str, text: str, reward: float
) -> None:
    assert asked(ANSWER, text, prompt)[0] == reward


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "scoring.scorers.tags: is required"),
        ({"tags": []}, "scoring.scorers.tags = []: each tag stands once, and there is one"),
        ({"tags": ["a", "a"]}, "scoring.scorers.tags = ['a', 'a']: each tag stands once"),
        ({"tags": ["<a>"]}, "scoring.scorers.tags = '<a>': is no name of a tag"),
        ({"tags": "think"}, "scoring.scorers.tags = 'think': Expected `array`, got `str`"),
        ({"tags": ["a"], "partial": 1.0}, "scoring.scorers.partial = 1.0: Expected `float` < 1.0"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, {"use": "format", **options}, at="scoring.scorers")
    assert str(caught.value).startswith(line)

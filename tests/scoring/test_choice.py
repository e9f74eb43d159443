"""`choice`: the option that an answer names, and no letter that merely occurs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from asked import listed, told
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.families import SCORERS
from pipeline.plugins import build

CITIES = {"answer": "B", "choices": ["London", "Paris", "Rome", "Berlin"]}
WHY_NOT = ("wrong", "no_final_answer", "several_answers", "not_understood")

WIDE, CYRILLIC = "\N{FULLWIDTH LATIN CAPITAL LETTER B}", "\N{CYRILLIC CAPITAL LETTER VE}"

RIGHT = r"""
B | (B) | B. | **B** | b | (b) | `B` | "B" | [B] | Option B | (B). | Answer: B | answer: b
Answer: (B) | **Answer:** B | **Answer**: (B) | Answer : **B**. | Answer = B | The answer is B
The answer is (B). | The correct answer is **B**. | the final answer is: B | The best option is B
The correct choice is (B) | The answer to this question is B | The answer is $\mathbf{B}$
\boxed{B} | $\boxed{B}$ | \boxed{\text{B}} | \boxed{(B)} | \fbox{B} | The answer is \boxed{B}.
<answer>B</answer> | <ANSWER> (B) </ANSWER> | <answer>\boxed{B}</answer> | #### B | #### (B)
Final answer: B | I take A at first, but the answer is B.
The answer is A. No, wait, the answer is B. | \boxed{A}, no: \boxed{B}
Answer: B because A is wrong | Answer: B, since C is too far. | Answer: B. It is the capital.
Maybe the answer is A. Answer: B | <think>A, or is it C? \boxed{A}</think>B
<think>no</think> Answer: B | Answer: A <think>hm</think> B
"""
BY_TEXT = r"""
Paris | paris. | **Paris** | The answer is Paris. | \boxed{\text{Paris}}
<answer> Paris </answer> | B) Paris | (B) Paris | B. Paris | **B. Paris** | Answer: B) Paris
The answer is (B) Paris. | B: Paris | Answer: B (Paris) | Answer: **B) Paris** | Option B: Paris
#### B) Paris | B Paris
"""
NEITHER = r"""
A | a | C | E | Answer: A | Answer: B, no, Answer: A | \boxed{B} \n \boxed{A}
<answer>A</answer> B | A or B | B or A | B or C | A, B | B, C | A and B | B & C | B/C | B C
(A) (B) | A B C D | ABCD | BB | Answer: B or C | Answer: B (or C) | Answer: B, possibly C
Answer: either A or B | Answer: A. No, B. | Answer: B. Wait, C. | \boxed{A, B, C, D}
\boxed{ABCD} | \boxed{A} or \boxed{B} | \boxed{B} or C | \boxed{B} \boxed{A}
\boxed{A} and \boxed{B} | #### B or C | #### B, C | #### A and B | Answer: A-D
<answer>A</answer><answer>B</answer> | <answer>A</answer>, <answer>B</answer>
The answer is A or the answer is B | Answer: B+C | Answer: A Answer: B or C
A) London B) Paris C) Rome D) Berlin | Which? (A) London (B) Paris (C) Rome (D) Berlin
We see B, and B again, so B | The letter B is fine | B is the letter I like | I think B | It is B
Because | Bad | Boo! | A bird | Answer: Bob | Answer: vitamin B | Answer: a boat | Plan B it is
not B | Answer: not B | The answer is not B | The answer isn't B | Answer: B is wrong
Answer: B isn't | If the answer is B, we lose. | I doubt the answer is B | Wrong answer: B
Is the answer B? | Answer: B? | Suppose the answer is B | The answer might be B | All of the above
None of these | <think>B | <think> the answer is B | <think>\boxed{B} | \boxed{B | <answer>B
\boxed{} | <answer></answer> | ß | Answer: | . | ()
"""
ODD = (CYRILLIC, "", "A) x\nB) y\nC) z", "x" * 300_000, "Answer: Bis", "Answer: B\n<answer>A")
BY_TEXT_NEITHER = """
Paris or London | Paris, London | London | Answer: Paris or Rome | Answer: (B) London | B. London
Answer: B London | London, Paris, Rome, Berlin | The city of Paris is nice | Pari | Parisian
"""


@pytest.mark.parametrize("text", [*listed(RIGHT), WIDE, "## Final Answer\n\n**B**", "Answer:\n(B)"])
@pytest.mark.parametrize("reference", ["B", CITIES], ids=["letter", "options"])
def test_the_letter_that_an_answer_gives_is_right(reference: Any, text: str) -> None:
    assert told("choice", text, reference) == (1.0, "right")


@pytest.mark.parametrize("text", listed(BY_TEXT))
def test_an_option_can_be_given_by_its_text(text: str) -> None:
    assert told("choice", text, CITIES) == (1.0, "right")


@pytest.mark.parametrize("text", [*listed(NEITHER), *ODD])
@pytest.mark.parametrize("reference", ["B", CITIES], ids=["letter", "options"])
def test_C053_a_letter_that_occurs_or_one_of_several_is_no_answer(
    reference: Any, text: str
) -> None:
    reward, why = told("choice", text, reference)
    assert reward == 0.0
    assert why in WHY_NOT


@pytest.mark.parametrize("text", listed(BY_TEXT_NEITHER))
def test_a_text_of_another_option_or_beside_another_letter_is_wrong(text: str) -> None:
    assert told("choice", text, CITIES)[0] == 0.0


def test_a_letter_and_a_text_that_disagree_are_neither() -> None:
    for answer in ("A", "B"):
        assert told("choice", "(B) London", {**CITIES, "answer": answer})[0] == 0.0


@pytest.mark.parametrize(
    ("prompt", "text", "right"),
    [
        ("Which?\n<think>\n", "B", False),
        ("Which?\n<think>\n", "Answer: B", False),
        ("Which?\n<think>\n", "well</think>B", True),
        ("Which?\n<answer>", "B</answer>", True),
        ("Which?\n<answer>", "B", False),
        ("A) x B) y. Answer: B", "A", False),
    ],
)
def test_C053b_what_began_in_the_prompt_must_end(prompt: str, text: str, right: bool) -> None:
    assert told("choice", text, "B", prompt=prompt)[0] == right


@pytest.mark.parametrize(
    ("finish", "text", "right"),
    [
        ("length", "Answer: B", False),
        ("stop", "Answer: B", True),
        ("length", "Answer: B\nFor", True),
        ("length", r"\boxed{B} is", True),
        ("length", "B", True),
    ],
)
def test_a_line_that_was_cut_off_is_no_answer(finish: str, text: str, right: bool) -> None:
    assert told("choice", text, "B", finish=finish)[0] == right


@pytest.mark.parametrize(
    ("spec", "reference", "text", "reward"),
    [
        ({"use": "choice", "case": "same"}, "B", "b", 0.0),
        ({"use": "choice", "case": "same"}, "B", "B", 1.0),
        ({"use": "choice", "labels": ["yes", "no", "maybe"]}, "yes", "Answer: Yes.", 1.0),
        ({"use": "choice", "labels": ["yes", "no", "maybe"]}, "yes", "Answer: yes and no", 0.0),
        ({"use": "choice", "labels": ["1", "2", "3"]}, 2, "The answer is 2.", 1.0),
        ({"use": "choice", "labels": ["1", "2", "3"]}, 2, "The answer is 23", 0.0),
        ({"use": "choice", "extract": ""}, "B", "Answer: A\nB", 0.0),
        ({"use": "choice", "extract": ""}, "B", " B ", 1.0),
        ({"use": "choice", "extract": r"I take (\w)"}, "B", "I take A. I take B", 1.0),
        ({"use": "choice", "extract": r"I take (\w)"}, "B", "<think>I take B</think> ok", 0.0),
        ("choice", {"answer": 1, "choices": ["x", "y"]}, "B", 1.0),
        ("choice", {"answer": "y", "choices": ["x", "y"]}, "B", 1.0),
        ("choice", {"answer": "2", "choices": {"1": "x", "2": "y"}}, "(2) y", 1.0),
        ("choice", {"answer": "D", "choices": {"label": ["C", "D"], "text": ["x", "y"]}}, "y", 1.0),
        ("choice", {"answer": "B", "choices": ["mm", "Mm"]}, "Mm", 1.0),
        ("choice", {"answer": "B", "choices": ["mm", "Mm"]}, "mm", 0.0),
        ("choice", {"answer": "B", "choices": ["mm", "Mm"]}, "MM", 0.0),
        ("choice", {"answer": "B", "choices": ["x2", "x²"]}, "x2", 0.0),
        ("choice", {"answer": "B", "choices": ["x2", "x²"]}, "x²", 1.0),
        ("choice", {"answer": "B", "choices": ["12", "120"]}, "12", 0.0),
        ("choice", {"answer": "A", "choices": ["A dog", "a cat"]}, "A dog", 1.0),
        ("choice", {"answer": "A", "choices": ["cat", "A dog"]}, "A dog", 0.0),
        ("choice", {"answer": "A", "choices": ["cat", "dog"]}, "A dog", 0.0),
        ("choice", {"answer": "C", "choices": ["O", "AB", "B"]}, "B", 0.0),
        ("choice", {"answer": "B", "choices": [r"$\frac12$", "$x^2$"]}, r"Answer: $x^2$", 1.0),
        ("choice", "c", "C", 1.0),
    ],
)  # fmt: skip
def test_labels_options_and_references_of_other_kinds(
    spec: Any, reference: Any, text: str, reward: float
) -> None:
    assert told(spec, text, reference)[0] == reward


@pytest.mark.parametrize(
    "reference",
    [None, "", "Z", "AB", 1, True, 1.0, ["B"], {}, {"answer": "B"},
     {"answer": "C", "choices": "ABC"},
     {"answer": "C", "choices": ["x", "y"]}, {"answer": 2, "choices": ["x", "y"]},
     {"answer": -1, "choices": ["x", "y"]}, {"answer": None, "choices": ["x", "y"]},
     {"answer": "A", "choices": []}, {"answer": "A", "choices": ["x"] * 11},
     {"answer": "a", "choices": {"a": "x", "A": "y"}}, {"answer": "x", "choices": ["x", "x"]},
     {"answer": "A", "choices": {"label": ["A"], "text": ["x", "y"]}}],
)  # fmt: skip
def test_a_reference_that_names_no_option_is_a_fault_and_no_zero(reference: Any) -> None:
    with pytest.raises(ValueError, match="the reference"):
        told("choice", "B", reference)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"labels": ["A", "a"]}, "scoring.scorers.labels = ['A', 'a']: two labels are the same"),
        ({"labels": ["A", ""]}, "scoring.scorers.labels = ['A', '']: two labels are the same"),
        ({"labels": "AB"}, "scoring.scorers.labels = 'AB': Expected `array`, got `str`"),
        ({"extract": "("}, "scoring.scorers.extract = '(': is no pattern"),
        ({"case": "lower"}, "scoring.scorers.case = 'lower': Invalid enum value 'lower'"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(SCORERS, {"use": "choice", **options}, at="scoring.scorers")
    assert str(caught.value).startswith(line)


WORDS = ("oak", "elm", "ash", "yew", "Larch", "Birch", "beech", "12", "1.5", "-3", "x^2", "$y$")
PLACES = ("{}", "Answer: {}", "**Answer:** {}", "So the answer is {}.", r"\boxed{{{}}}",
          "<answer>{}</answer>", "#### {}", "<think>so {other}</think>\n{}",
          "First {other}? No. The final answer is {}", "## Final answer\n{}\n")  # fmt: skip
LOOKS = ("{}", "({})", "**{}**", " {} ", "{}.", "Option {}")
SEVERAL = ("{} or {other}", "{other} or {}", "{}, {other}", "{}/{other}", "{other} and {}",
           "{} {other}", "either {} or {other}", "{} (or {other})",
           "{}; maybe {other}")  # fmt: skip


def question(rng: Random) -> tuple[dict[str, Any], str, str]:
    """A reference, its right label, and another."""
    texts = rng.sample(WORDS, rng.randint(2, 6))
    right, other = rng.sample("ABCDEF"[: len(texts)], 2)
    return {"answer": right, "choices": texts}, right, other


def written(rng: Random, reference: dict[str, Any], label: str) -> str:
    """The label, or its text, or both, as somebody would write it."""
    text = reference["choices"]["ABCDEF".index(label)]
    if rng.random() < 0.3:
        return text
    if rng.random() < 0.3:
        return f"{label}) {text}"
    return rng.choice(LOOKS).format(rng.choice([label, label, label.lower()]))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**62))
def test_however_it_is_written_the_right_option_is_right_and_another_is_wrong(seed: int) -> None:
    rng = Random(seed)
    reference, right, other = question(rng)
    place = rng.choice(PLACES)
    for label, wrong, reward in ((right, other, 1.0), (other, right, 0.0)):
        text = place.format(written(rng, reference, label), other=wrong)
        assert told("choice", text, reference)[0] == reward, (reference, text)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**62))
def test_more_than_one_option_is_none_however_it_is_written(seed: int) -> None:
    rng = Random(seed)
    reference, right, other = question(rng)
    several = rng.choice(SEVERAL).format(right, other=other)
    text = rng.choice(PLACES[:7]).format(several)
    assert told("choice", text, reference)[0] == 0.0, (reference, text)

"""What counts as a verdict; everything else is a fault and no reward."""

from array import array
from fractions import Fraction

import numpy as np
import pytest

from pipeline.messages import Completion, Prompt, Sampling
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault, answer_of, checked, raised
from services.scoring.scorers.text import exact


@pytest.mark.parametrize(
    ("raw", "reward", "outcome"),
    [
        (0.5, 0.5, 0.5),
        (1, 1.0, 1.0),
        (True, 1.0, 1.0),
        (np.float32(0.25), 0.25, 0.25),
        (Fraction(1, 2), 0.5, 0.5),
        (Verdict(reward=0.5), 0.5, 0.5),
        (Verdict(reward=0.5, outcome=0), 0.5, 0.0),
    ],
)
def test_finite_numbers_are_verdicts(raw: object, reward: float, outcome: float) -> None:
    verdict = checked(raw)
    assert (verdict.reward, verdict.outcome) == (reward, outcome)
    assert type(verdict.reward) is type(verdict.outcome) is float


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "1.0",
        [1.0],
        float("nan"),
        float("inf"),
        -float("inf"),
        10**400,
        1j,
        Verdict(reward=float("nan")),
        Verdict(reward=1.0, outcome=float("inf")),
        Verdict(reward="1"),  # type: ignore[arg-type]
    ],
)
def test_anything_else_is_a_bad_verdict(raw: object) -> None:
    with pytest.raises(Fault) as caught:
        checked(raw)
    assert caught.value.reason == "bad_verdict"
    assert str(caught.value).startswith("bad_verdict: the ")


def test_a_fault_is_one_short_line() -> None:
    fault = raised(ValueError("first\nsecond " + "x" * 5000))
    assert str(fault).startswith("raised: ValueError: first second x")
    assert len(str(fault)) < 250


@pytest.mark.parametrize(
    ("text", "reference", "reward"),
    [
        ("a1b2", "a1b2", 1.0),
        ("  a1b2\n", "a1b2", 1.0),
        ("a1b2", " a1b2 ", 1.0),
        ("a1 b2", "a1b2", 0.0),
        ("A1b2", "a1b2", 0.0),
        ("a1b2,", "a1b2", 0.0),
        ("", "a1b2", 0.0),
        ("42", 42, 1.0),
        ("42.0", 42, 0.0),
    ],
)
def test_exact_compares_text_with_the_reference(
    text: str, reference: object, reward: float
) -> None:
    answer = Answer(text=text, prompt="", reference=reference, finish="stop")
    assert exact(answer) == Verdict(reward=reward)


def test_a_scorer_is_shown_what_the_policy_read_and_wrote() -> None:
    prompt = Prompt(
        group="g",
        seq=0,
        ids=array("i", [72, 105]).tobytes(),
        members=1,
        sampling=Sampling(),
        task="greet",
        reference=b'{"n": 1}',
    )
    ids = array("i", [72, 111]).tobytes()
    completion = Completion(
        group="g", member=0, ids=ids, logprobs=bytes(8), spans=(), finish="stop"
    )
    assert answer_of(prompt, completion, lambda raw: "".join(map(chr, array("i", raw)))) == Answer(
        text="Ho", prompt="Hi", reference={"n": 1}, finish="stop", task="greet", ids=(72, 111)
    )

"""What counts as a verdict; everything else is a fault and no reward."""

from array import array
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.messages import Completion, Prompt, Sampling
from pipeline.protocols import Answer, Drawn, Verdict
from pipeline.verdicts import Fault, answer_of, checked, outcome_term, raised, terms, total
from services.scoring.scorers.text.strings import exact


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
    assert exact(answer).reward == reward


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
        text="Ho",
        prompt="Hi",
        reference={"n": 1},
        finish="stop",
        task="greet",
        ids=(72, 111),
        drawn=Drawn(prompt=prompt.ids, logprobs=bytes(8), temperature=1.0),
        max_tokens=256,
    )


def scored(*rewards: float) -> list[Verdict]:
    return [Verdict(reward=reward, outcome=reward / 2) for reward in rewards]


@pytest.mark.parametrize(
    ("specs", "rewards", "reward", "outcome"),
    [
        (["a"], [3.0], 3.0, 1.5),
        (["a", "b"], [3.0, 1.0], 4.0, 1.5),
        ([{"use": "a", "weight": 0.5}, {"use": "b", "weight": -2}], [3.0, 1.0], -0.5, 1.5),
        ([{"use": "a", "gate": True}, "b"], [0.5, 1.0], 1.0, 0.5),
        ([{"use": "a", "gate": True}, "b"], [0.0, 1.0], 0.0, 0.5),
        (["b", {"use": "a", "gate": True}], [1.0, -1.0], 1.0, 0.5),
        (["a", {"use": "a", "gate": False}], [1.0, 0.0], 1.0, 0.5),
    ],
)
def test_a_total_is_weighed_and_shut_by_a_gate_of_0(
    specs: list[Any], rewards: list[float], reward: float, outcome: float
) -> None:
    whole = total(terms(specs), scored(*rewards))
    assert (whole.reward, whole.outcome) == (reward, outcome)


def test_a_total_beyond_all_numbers_is_a_fault() -> None:
    with pytest.raises(Fault, match="the reward is inf"):
        total(terms(["a", "b"]), scored(1.7e308, 1.7e308))


def test_weight_and_gate_are_no_scorers_options() -> None:
    found = terms(["a", {"use": "b", "weight": 2, "x": 1}, {"use": "c", "gate": True}])
    assert [term.spec for term in found] == ["a", {"use": "b", "x": 1}, {"use": "c"}]
    assert outcome_term(found[::-1]) == found[1]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"use": "a", "weight": "1"}, "scoring.scorers[1].weight = '1': Expected `float`"),
        ({"use": "a", "weight": float("nan")}, "scoring.scorers[1].weight = nan: is no weight"),
        ({"use": "a", "gate": 1}, "scoring.scorers[1].gate = 1: Expected `bool`"),
        ({"use": "a", "gate": True, "weight": 1.0}, "scoring.scorers[1].gate = True: of weight,"),
        ({"use": "a", "gate": True, "shadow": True}, "scoring.scorers[1].shadow = True: of weight"),
        ({"use": "a", "concurrency": 0}, "scoring.scorers[1].concurrency = 0: Expected `int` >= 1"),
        ({"use": "a", "timeout_seconds": float("inf")}, "scoring.scorers[1].timeout_seconds = inf"),
        ({"use": "a", "golden": ""}, "scoring.scorers[1].golden = '': Expected `str` of length"),
        ({"use": "teacher", "gate": True}, "scoring.scorers[1].gate = True: teacher gives 0 to"),
        ({"use": "overlong", "gate": True}, "scoring.scorers[1].gate = True: overlong gives 0 to"),
        ({"use": "teacher", "shadow": True}, "scoring.scorers[1].shadow = True: of a teacher in"),
    ],
)
def test_a_wrong_weight_or_gate_is_refused_by_its_place(spec: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        terms(["a", spec])
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("specs", "line"),
    [
        (["overlong", "exact"], "[0] = 'overlong': its outcome is 0 for every answer"),
        ([{"use": "kl_penalty", "weight": 0.5}], "[0] = 'kl_penalty': its outcome is 0"),
        ([{"use": "a", "gate": True}, "overlong", "b"], "[1] = 'overlong': its outcome is 0"),
        (["teacher", "overlong", "exact"], "[0] = 'teacher': its outcome is 0"),
    ],
)
def test_a_scorer_that_cannot_tell_good_from_bad_is_refused_where_it_gives_the_outcome(
    specs: list[Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        terms(specs)
    assert str(caught.value).startswith(f"scoring.scorers{line}")
    grader = next((name for name in specs if name in ("exact", "b")), "one that grades")
    assert str(caught.value).endswith(f"; name {grader} before it")


@pytest.mark.parametrize("specs", [["exact", "overlong"], ["a", "teacher"], ["teacher"]])
def test_behind_one_that_grades_it_shapes_and_a_teacher_may_be_alone(specs: list[str]) -> None:
    assert [term.spec for term in terms(specs)] == specs


def test_gates_alone_are_no_reward() -> None:
    with pytest.raises(ConfigError, match="every scorer is a gate"):
        terms([{"use": "a", "gate": True}])


def test_weights_of_0_alone_are_no_reward() -> None:
    nothing = {"use": "a", "weight": 0.0}
    with pytest.raises(ConfigError, match="every weight is 0, and so is every reward"):
        terms([nothing, {"use": "b", "gate": True}])
    assert len(terms([nothing, "b"])) == len(terms([nothing, "teacher"])) == 2

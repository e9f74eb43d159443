"""Mathematical equality: verdicts that a reader would give, policies, and what is no answer."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from pipeline.errors import SluiceError
from pipeline.families import SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.math.answers import answer_in
from services.scoring.scorers.math.scorer import EQUAL, UNEQUAL, Math
from services.scoring.scorers.reasons import NoAnswer, Why

GOLDEN = Path(__file__).parent / "math_golden.jsonl"
MORE = Path(__file__).parent / "math_pairs.jsonl"


class Pair(NamedTuple):
    """One line of the golden file."""

    id: str
    answer: str
    completion: str
    expected: bool


class Judged(NamedTuple):
    """One line of the longer file, whose pairs are grouped by kind."""

    kind: str
    answer: str
    completion: str
    expected: bool


KINDS = {
    kind: [*pairs]
    for kind, pairs in groupby(
        (Judged(**msgspec.json.decode(line)) for line in MORE.read_bytes().splitlines()),
        key=lambda pair: pair.kind,
    )
}
PAIRS = [Pair(**msgspec.json.decode(line)) for line in GOLDEN.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def math() -> Math:
    return Math()


def asked(text: str, gold: Any, *, prompt: str = "") -> Answer:
    return Answer(text=text, prompt=prompt, reference=gold, finish="stop")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_C050_pairs_have_the_verdict_that_a_reader_would_give(math: Math, pair: Pair) -> None:
    graded = math.grade(asked(pair.completion, pair.answer))
    assert graded.right == pair.expected, (pair, graded)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_as_data_sets_and_models_write_them_have_a_readers_verdict(
    math: Math, kind: str
) -> None:
    graded = [(pair, math.grade(asked(pair.completion, pair.answer))) for pair in KINDS[kind]]
    assert not [(pair, found) for pair, found in graded if found.right != pair.expected]


@pytest.mark.parametrize(
    ("case", "options", "gold", "text", "right"),
    [
        ("M40", {}, r"50\%", r"\boxed{50%}", True),
        ("M41", {}, "50", r"\boxed{50\%}", False),
        ("M41", {"percent": "unit"}, "50", r"\boxed{50\%}", True),
        ("M41", {"percent": "either"}, "50", r"\boxed{50\%}", True),
        ("M42", {}, "0.5", r"\boxed{50\%}", True),
        ("M42", {"percent": "unit"}, "0.5", r"\boxed{50\%}", False),
        ("M42", {"percent": "either"}, "0.5", r"\boxed{50\%}", True),
        ("M43", {}, "1/2", r"\boxed{50\%}", True),
        ("M72", {}, "-0.13", r"\boxed{-13\%}", True),
        ("M73", {}, "2.5", r"\boxed{250\%}", True),
        ("percent, turned", {}, r"50\%", r"\boxed{0.5}", True),
        ("percent, turned", {}, r"50\%", r"\boxed{50}", False),
        ("M19", {}, "33.3", r"\boxed{\frac{100}{3}}", False),
        ("M19", {"rounding": 3}, "33.3", r"\boxed{\frac{100}{3}}", True),
        ("M19", {"rounding": 4}, "33.3", r"\boxed{\frac{100}{3}}", False),
        ("M19 cut", {"rounding": 3}, "66.6", r"\boxed{\frac{200}{3}}", True),
        ("M19 wrong", {"rounding": 3}, "33.4", r"\boxed{\frac{100}{3}}", False),
        ("M13", {}, r"\frac{1}{12}", r"\boxed{0.0833333333333}", True),
        ("M13", {}, r"\frac{1}{12}", r"\boxed{0.0833333333}", False),
        ("two decimals", {"rounding": 3}, "3.14", r"\boxed{3.141}", False),
        ("irrational", {"rounding": 3}, r"\pi", r"\boxed{3.14}", True),
        ("irrational", {}, r"-\sqrt{2}", r"\boxed{-1.41421356237}", True),
        ("power of ten", {"rounding": 3}, "299792458", r"\boxed{2.998\times10^{8}}", True),
        ("M36", {}, "52_8", r"\boxed{52}", False),
        ("M36", {"bases": "dropped"}, "52_8", r"\boxed{52}", True),
        ("M36", {"bases": "value"}, "52_8", r"\boxed{52}", False),
        ("M36 value", {"bases": "value"}, "52_8", r"\boxed{42}", True),
        ("M36 value", {}, "52_8", r"\boxed{42}", False),
        ("M36 other base", {"bases": "value"}, "52_8", r"\boxed{101010_2}", True),
        ("M36 other base", {}, "52_8", r"\boxed{101010_2}", False),
        ("M35", {"bases": "dropped"}, "52_8", r"\boxed{528}", False),
        ("M29", {}, "73", "Thus **73**.\n\n---\n\nFinal Answer: **73**", False),
        ("M29", {"unboxed": "marked"}, "73", "Thus **73**.\n\n---\n\nFinal Answer: **73**", True),
        ("M70", {"unboxed": "marked"}, "42", "We see 42 in step 2, then 17, no box", False),
        ("C055", {"unboxed": "marked"}, "42", "#### 42 " + "x" * 480, True),
        ("C055", {}, "42", "#### 42 " + "x" * 480, False),
        ("tags", {"unboxed": "marked"}, "42", "<answer>42</answer>", True),
        ("a box first", {"unboxed": "marked"}, "42", r"\boxed{41} Answer: 42", False),
        ("H2", {"unboxed": "marked"}, "9", "Answer: 009", True),
        ("M50", {}, "3", r"\boxed{1+2}", True),
        ("M61", {}, r"(-\infty,-4)\cup(-4,\infty)",
         r"\boxed{\text{all real numbers except } -4}", False),
        ("M65", {}, "45", r"\boxed{45\text{ m}}", True),
        ("M65 turned", {}, r"45\text{ m}", r"\boxed{45}", False),
        ("M65 turned", {"units": "optional"}, r"45\text{ m}", r"\boxed{45}", True),
        ("another unit", {"units": "optional"}, r"45\text{ m}", r"\boxed{45\text{ cm}}", False),
        ("degrees", {}, r"90^\circ", r"\boxed{90}", False),
        ("degrees", {"units": "optional"}, r"90^\circ", r"\boxed{90}", True),
    ],
)  # fmt: skip
def test_C052_each_policy_has_its_verdict(
    case: str, options: dict[str, Any], gold: str, text: str, right: bool
) -> None:
    assert Math(**options).grade(asked(text, gold)).right == right, case


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"\boxed{42}", Why.RIGHT),
        (r"\boxed{41}", Why.WRONG),
        ("42", Why.NO_ANSWER),
        (r"\boxed{42", Why.NO_ANSWER),
        (r"<think> \boxed{42}", Why.NO_ANSWER),
        (r"\boxed{41}, or maybe it is \boxed{42}", Why.HEDGED),
        (r"\boxed{42 \strange 1}", Why.NOT_UNDERSTOOD),
        (r"\boxed{1/2x}", Why.NOT_UNDERSTOOD),
        (r"\boxed{9^{9^9}}", Why.TOO_LARGE),
        (r"\boxed{42/0}", Why.NO_VALUE),
    ],
)
def test_a_verdict_has_its_reason(math: Math, text: str, why: Why) -> None:
    assert math.grade(asked(text, "42")).why == why


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{\frac{1}{3}}", r"\frac{1}{3}"),
        (r"\fbox{42}", "42"),
        (rf"\boxed{{{'1' * 150}}}{'x' * 480}", "1" * 150),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{3} and \boxed{4}", "3, 4"),
        (r"\boxed{\boxed{3} x}", "{3} x"),
        (r"Mark it with \boxed ", None),
        (r"\boxed{", None),
        (r"\boxed{}", None),
    ],
)
def test_C055_a_box_is_found_by_its_braces(text: str, found: str | None) -> None:
    if found is not None:
        assert answer_in(asked(text, None), "refused") == found
        return
    with pytest.raises(NoAnswer):
        answer_in(asked(text, None), "refused")


def test_C053_reasoning_that_began_in_the_prompt_must_end(math: Math) -> None:
    prompt = "What is 6 * 7?\n<think>\n"
    assert math.grade(asked(r"so \boxed{42}", 42, prompt=prompt)).why == Why.NO_ANSWER
    assert math.grade(asked(r"hm </think> \boxed{42}", 42, prompt=prompt)).right


def test_the_name_in_a_run_is_this_scorer_with_its_options() -> None:
    scorer = build(SCORERS, {"use": "math", "percent": "unit"}, at="scoring.scorers", policy="")
    assert scorer(asked(r"\boxed{50\%}", 50)) == Verdict(reward=1.0, reason="right")


@pytest.mark.parametrize(
    "reference",
    [42, 42.0, "42", "$42$", ["42"], "#### 42", r"\boxed{42}", "6 * 7 = <<6*7=42>>42.\n#### 42",
     r"Since $x=41$ is wrong, $\boxed{42}$."],
)  # fmt: skip
def test_a_reference_is_a_number_a_formula_or_a_worked_solution(math: Math, reference: Any) -> None:
    assert math.grade(asked(r"\boxed{42}", reference)).right
    assert not math.grade(asked(r"\boxed{41}", reference)).right


@pytest.mark.parametrize(
    "reference", ["", " ", "$ $", None, {"answer": 42}, [], ["42", "43"], r"\boxed{42", "#### "]
)
def test_a_reference_that_is_none_is_a_fault_and_no_zero(math: Math, reference: Any) -> None:
    with pytest.raises(ValueError, match="the reference is no formula"):
        math(asked(r"\boxed{42}", reference))


@pytest.mark.parametrize("text", ["We see 42 ... so 42", r"<think> so \boxed{42}", "", r"\boxed{}"])
def test_C053_what_ends_without_an_answer_is_counted_as_such(math: Math, text: str) -> None:
    assert math(asked(text, 42)) == Verdict(reward=0.0, reason="no_final_answer")


def test_C050_a_checker_that_is_broken_starts_nowhere(tmp_path: Path) -> None:
    """A library of that name in which every number is 1 stands in for an installation that is."""
    (tmp_path / "mpmath.py").write_text(
        "from contextlib import nullcontext\n"
        "class MPContext:\n"
        "    pi = e = 1\n"
        "    workdps = staticmethod(nullcontext)\n"
        "    isfinite = staticmethod(lambda value: True)\n"
        "    mag = im = staticmethod(lambda value: 0)\n"
        "    re = staticmethod(lambda value: value)\n"
        "    isint = staticmethod(lambda value: False)\n"
        "    mpf = power = staticmethod(lambda *values: 1.0)\n"
    )
    code = (
        "from services.scoring.scorers.math.scorer import Math\n"
        "from pipeline.errors import SluiceError\n"
        "try: Math()\n"
        "except SluiceError as exc: print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is wrong: " in done.stdout, done.stderr


def test_the_known_pairs_hold_under_every_policy() -> None:
    assert len(EQUAL) == len(UNEQUAL) == 10
    try:
        Math(percent="either", rounding=1, bases="dropped", units="optional", unboxed="marked")
    except SluiceError as exc:
        pytest.fail(str(exc))

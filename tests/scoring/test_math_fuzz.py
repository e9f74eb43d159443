"""Rewritings of right answers are right and near misses are wrong, whatever their kind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import mpmath
import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from math_structures import known, near, write
from math_trees import ALIKE, DIGITS, PLACES, changed, tree, worth, written
from math_writings import boxed

from pipeline.protocols import Answer
from services.scoring.scorers.math.scorer import Graded, Math
from services.scoring.scorers.reasons import Why

MATH = Math()
FEW, MANY = 200, 10_000
QUIET = [HealthCheck.too_slow]
SEEDS = st.integers(0, 2**62)
SIGNS = r"""
    \frac \sqrt \sin \log_ \binom \pm \cup \infty \pi \in \mathbb{R} \emptyset \text{cm} \%
    \$ { } ( ) [ ]
    \{ \} | 1 23 0.5 x i e f( ^ _ + - * / ! , : = < \le \ldots 9^{9^9} 5! A_ \lfloor \rfloor & \\ ~
    \begin{pmatrix} \end{pmatrix} \left( \right] gcd( \overline{3} \unknown ^\circ
"""
PARTS = (*SIGNS.split(), " and ", " or ", r"\text{ 5 of }")
WRITTEN = [
    msgspec.json.decode(line)["completion"].removeprefix(r"\boxed{").removesuffix("}")
    for line in (Path(__file__).parent / "math_pairs.jsonl").read_bytes().splitlines()
]


def graded(reference: str, text: str) -> Graded:
    return MATH.grade(Answer(text=text, prompt="", reference=reference, finish="stop"))


def check_rewriting(number: int) -> None:
    rng = Random(number)
    answer = known(rng)
    reference, text = write(answer, rng), boxed(write(answer, rng), rng)
    verdict = graded(reference, text)
    assert verdict.right, f"{answer.kind}: {reference!r} and {text!r}: {verdict.why}"


def check_near_miss(number: int) -> None:
    rng = Random(number)
    answer = known(rng)
    reference, text = write(answer, rng), boxed(write(near(answer, rng), rng), rng)
    assert not graded(reference, text).right, f"{answer.kind}: {reference!r} and {text!r}"


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_a_right_answer_is_right_however_it_is_written(number: int) -> None:
    check_rewriting(number)


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_a_near_miss_is_wrong_however_it_is_written(number: int) -> None:
    check_near_miss(number)


def check_worth(number: int) -> None:
    """Two expressions, much alike, are equal if mpmath alone says so; both are real."""
    rng = Random(number)
    one = tree(rng, rng.randint(1, 4))
    other = changed(one, rng)
    with mpmath.workdps(DIGITS):
        try:
            pairs = [(worth(one, x), worth(other, x)) for x in PLACES]
        except ValueError:
            return
        same = all(abs(a - b) <= ALIKE * (1 + abs(a)) for a, b in pairs)
    reference, formula = written(one, rng), written(other, rng)
    verdict = MATH.compare(reference=reference, formula=formula)
    assert verdict.why in (Why.RIGHT if same else Why.WRONG, Why.TOO_LARGE), (reference, formula)


def check_slip(number: int) -> None:
    """An answer with slips of the pen in it, and another as the reference: nothing is raised."""
    rng = Random(number)
    text, other = rng.sample(WRITTEN, 2)
    for _ in range(rng.randint(1, 4)):
        place, part = rng.randrange(len(text) + 1), rng.choice(PARTS)
        start = rng.randrange(len(other) + 1)
        slips = ["", part, part + text[place : place + 1], other[start : start + 9]]
        text = text[:place] + rng.choice(slips) + text[place + 1 :]
    MATH.compare(reference=rng.choice([other, text.replace("1", "0", 1)]), formula=text)


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_expressions_are_worth_what_mpmath_says(number: int) -> None:
    check_worth(number)


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_no_slip_of_the_pen_is_a_fault(number: int) -> None:
    check_slip(number)


@pytest.mark.parametrize("formula", [r"\sqrt[3]{0}", r"0i\le x<1", r"6\frac{-3}{-0}"])
def test_what_was_a_fault_has_a_verdict(formula: str) -> None:
    assert not graded("[5,6)", rf"\boxed{{{formula}}}").right


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(st.lists(st.sampled_from(PARTS), max_size=16).map("".join))
def test_whatever_is_written_has_a_verdict_and_is_like_itself(formula: str) -> None:
    """Nothing is raised; and whatever has a token is right where it is its own reference."""
    MATH.compare(reference=formula, formula=r"x+\sqrt{2}")
    assert MATH.compare(reference=f"{formula}1", formula=f" {formula}1").right


@pytest.mark.long
@pytest.mark.timeout(600)
@seed(4)
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_ten_thousand_expressions_are_worth_what_mpmath_says(number: int) -> None:
    check_worth(number)


@pytest.mark.long
@pytest.mark.timeout(600)
@seed(3)
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_of_ten_thousand_slips_none_is_a_fault(number: int) -> None:
    check_slip(number)


@pytest.mark.long
@pytest.mark.timeout(600)
@seed(1)
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_no_right_answer_of_ten_thousand_is_wrong(number: int) -> None:
    check_rewriting(number)


@pytest.mark.long
@pytest.mark.timeout(600)
@seed(2)
@settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET)
@given(SEEDS)
def test_no_near_miss_of_ten_thousand_is_right(number: int) -> None:
    check_near_miss(number)

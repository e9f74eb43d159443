"""Rewritings of right answers are right and near misses are wrong, whatever their kind."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from math_writings import boxed, known, near, write

from pipeline.protocols import Answer
from services.scoring.scorers.math.scorer import Graded, Math

MATH = Math()
FEW, MANY = 300, 10_000
QUIET = [HealthCheck.too_slow]
SEEDS = st.integers(0, 2**62)
SIGNS = r"""
    \frac \sqrt \sin \log_ \binom \pm \cup \infty \pi \in \mathbb{R} \emptyset \text{cm} \%
    \$ { } ( ) [ ]
    \{ \} | 1 23 0.5 x i e f( ^ _ + - * / ! , : = < \le \ldots 9^{9^9} 5! A_ \lfloor \rfloor & \\ ~
    \begin{pmatrix} \end{pmatrix} \left( \right] gcd( \overline{3} \unknown ^\circ
"""
PARTS = (*SIGNS.split(), " and ", " or ", r"\text{ 5 of }")


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


@settings(max_examples=FEW, deadline=None, suppress_health_check=QUIET)
@given(st.lists(st.sampled_from(PARTS), max_size=16).map("".join))
def test_whatever_is_written_has_a_verdict_and_is_like_itself(formula: str) -> None:
    """Nothing is raised; and whatever has a token is right where it is its own reference."""
    MATH.compare(reference=formula, formula=r"x+\sqrt{2}")
    assert MATH.compare(reference=f"{formula}1", formula=f" {formula}1").right


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

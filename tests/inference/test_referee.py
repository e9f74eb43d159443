"""Outcomes of answers in one process: what is a fault, and how long anything may take."""

from __future__ import annotations

import signal
import time

import graders_for_tests
import pytest
from graders_for_tests import (
    InBatches,
    Recovering,
    by_text,
    by_text_async,
    with_a_loop_of_its_own,
)

from pipeline.protocols import Answer
from services.inference.referee import Referee


def answers(*texts: str) -> list[Answer]:
    return [Answer(text=text, prompt="", reference=None, finish="stop") for text in texts]


def test_what_is_no_verdict_is_no_outcome_and_never_zero() -> None:
    referee = Referee(by_text, seconds=5)
    texts = ("1", "raises", "exits", "nan", "shaped", "0")
    assert referee.outcomes(answers(*texts)) == [1.0, None, None, None, 1.0, 0.0]


@pytest.mark.parametrize("text", ["hangs", "swallows"])
def test_a_scorer_that_hangs_is_interrupted_and_the_next_answer_has_its_own_time(
    text: str,
) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    assert Referee(by_text, seconds=0.1).outcomes(answers(text, "1", text)) == [None, 1.0, None]
    assert 0.2 <= time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGALRM) is handler


def test_async_scorers_are_asked_side_by_side_each_with_its_own_time() -> None:
    graders_for_tests.most = 0
    outcomes = Referee(by_text_async, seconds=0.5).outcomes(answers("hangs", "nan", *["1"] * 20))
    assert outcomes == [None, None, *[1.0] * 20]
    assert graders_for_tests.most == 22 and graders_for_tests.running == 0


def test_a_fault_that_may_pass_is_tried_again_so_often_and_no_oftener() -> None:
    scorer = Recovering()
    assert Referee(scorer, seconds=5, retries=1).outcomes(answers("1", "always")) == [1.0, None]
    assert scorer.asked == {"1": 2, "always": 2}


def test_a_plain_scorer_may_run_a_loop_of_its_own() -> None:
    assert Referee(with_a_loop_of_its_own, seconds=5).outcomes(answers("1")) == [1.0]


def test_a_batched_scorer_is_asked_in_batches_and_a_fault_is_that_of_one_answer() -> None:
    texts = ["0", "1", "2", "raises", "4", "5", "nan", "7"]
    outcomes = Referee(InBatches(), seconds=5).outcomes(answers(*texts))
    assert outcomes == [3.0, 3.0, 3.0, None, 1.0, 1.0, None, 2.0]

"""What a member must be to be of any use, however fresh; and that every other kind has a name."""

from __future__ import annotations

import struct

import msgspec
import pytest

from pipeline.flaws import flaw
from pipeline.ledger import FLAWS
from pipeline.messages import Completion, Kept, Prompt, Sampling, Span

VOCABULARY = 10
ASKED = Prompt(group="g", seq=0, ids=struct.pack("<2i", 3, 4), members=2, sampling=Sampling())


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def completion(tokens: int, **changes: object) -> Completion:
    whole = Completion(
        group="g",
        member=0,
        ids=ints(*(n % VOCABULARY for n in range(tokens))),
        logprobs=floats(*[-0.5] * tokens),
        spans=(Span(0, tokens, "boot"),),
    )
    return msgspec.structs.replace(whole, **changes)


def spans(*lengths: int) -> tuple[Span, ...]:
    return tuple(Span(0, tokens, "boot") for tokens in lengths)


def found(changes: dict[str, object], tokens: int = 5, **prompt: object) -> str | None:
    asked = msgspec.structs.replace(ASKED, **prompt)
    reason = flaw(completion(tokens, **changes), asked, VOCABULARY)
    assert reason is None or reason in FLAWS, "the ledger and the metrics know it"
    return reason


@pytest.mark.parametrize("logprobs", [4, 6, 0])
def test_C004_another_number_of_logprobs_than_ids_is_refused(logprobs: int) -> None:
    assert found({"logprobs": bytes(4 * logprobs)}) == "logprob_length"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_C015_a_logprob_that_is_not_finite_is_refused(bad: float) -> None:
    assert found({"logprobs": floats(-0.1, bad, -0.2)}, tokens=3) == "nonfinite_logprob"


def test_infinities_of_both_signs_do_not_cancel() -> None:
    raw = floats(float("inf"), float("-inf"), 0)
    assert found({"logprobs": raw}, tokens=3) == "nonfinite_logprob"


def test_the_lowest_floats_are_finite_however_many() -> None:
    assert found({"logprobs": floats(*[-3.4e38] * 100)}, tokens=100) is None


@pytest.mark.parametrize(
    ("logprob", "reason"),
    [(0.0, None), (1e-5, None), (1e-3, "positive_logprob"), (3e38, "positive_logprob")],
)
def test_no_probability_is_above_one_but_for_rounding(logprob: float, reason: str | None) -> None:
    assert found({"logprobs": floats(-0.1, logprob)}, tokens=2) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spans": spans(4)}, "span_length"),
        ({"spans": spans(7, -2)}, "span_length"),
        ({"spans": ()}, "span_length"),
        ({"spans": spans(2, 0, 3)}, None),
        ({"ids": b"", "logprobs": b"", "spans": ()}, "empty_completion"),
        ({"ids": bytes(6), "logprobs": bytes(6)}, "logprob_length"),
        ({"mask": ((0, 5), (2, 2), (1, 3))}, None),
        ({"mask": ((4, 6),)}, "mask_range"),
        ({"mask": ((-1, 2),)}, "mask_range"),
        ({"mask": ((3, 2),)}, "mask_range"),
        ({}, None),
    ],
)
def test_what_a_whole_completion_is(changes: dict[str, object], reason: str | None) -> None:
    assert found(changes) == reason


@pytest.mark.parametrize("bad", [VOCABULARY, VOCABULARY + 5, -1, 2**31 - 1, -(2**31)])
def test_ids_that_the_model_does_not_know_are_refused_wherever_they_stand(bad: int) -> None:
    two = {"logprobs": floats(-1, -1)}
    assert found(two | {"ids": ints(5, bad)}, tokens=2) == "token_unknown"
    assert found({}, ids=ints(3, bad)) == "prompt_token_unknown"
    kept = Kept(counts=ints(1, 2), ids=ints(0, *sorted((1, bad))))
    assert found(two | {"kept": kept}, tokens=2) == "kept_token_unknown"


def test_the_first_and_the_last_id_are_known() -> None:
    first, last = 0, VOCABULARY - 1
    kept = Kept(counts=ints(2, 1), ids=ints(first, last, last))
    changes = {"ids": ints(first, last), "logprobs": floats(-1, 0), "kept": kept}
    assert found(changes, tokens=2, ids=ints(first, last)) is None


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ({"ids": b""}, "empty_prompt"),
        ({"ids": bytes(7)}, "prompt_length"),
        ({"sampling": Sampling(temperature=0.0)}, "prompt_temperature"),
        ({"sampling": Sampling(temperature=-1.0)}, "prompt_temperature"),
        ({"sampling": Sampling(temperature=float("nan"))}, "prompt_temperature"),
        ({"sampling": Sampling(temperature=float("inf"))}, "prompt_temperature"),
        ({"sampling": Sampling(top_p=0.9)}, "kept_missing"),
    ],
)
def test_a_prompt_that_cannot_be_trained_refuses_its_members(
    prompt: dict[str, object], reason: str
) -> None:
    assert found({}, **prompt) == reason

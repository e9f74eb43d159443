"""Kept sets on the wire: which records are whole, and that the wire changes none."""

from __future__ import annotations

import struct

import msgspec
import pytest

from pipeline.kept import kept_flaw, kept_missing
from pipeline.messages import Completion, Kept, Message, Sampling, Span


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def completion(counts: tuple[int, ...], ids: tuple[int, ...], **fields: object) -> Completion:
    """Tokens 5, 2 and 9."""
    made = Completion(
        group="g",
        member=0,
        ids=ints(5, 2, 9),
        logprobs=struct.pack("<3f", -0.1, -0.2, -0.3),
        spans=(Span(0, 3, "b"),),
        kept=Kept(counts=ints(*counts), ids=ints(*ids)),
    )
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize(
    ("counts", "ids"),
    [((2, 1, 3), (1, 5, 2, 7, 8, 9)), ((0, 2, 0), (0, 2)), ((0, 0, 0), ())],
)
def test_a_whole_record_has_no_flaw(counts: tuple[int, ...], ids: tuple[int, ...]) -> None:
    assert kept_flaw(completion(counts, ids), 10) is None


@pytest.mark.parametrize(
    ("counts", "ids", "reason"),
    [
        ((2, 1), (1, 5, 2), "kept_length"),
        ((2, 1, 1, 1), (1, 5, 2, 9, 9), "kept_length"),
        ((2, 1, 1), (1, 5, 2), "kept_length"),
        ((2, 1, 1), (1, 5, 2, 9, 9), "kept_length"),
        ((5, -1, 0), (1, 5, 6, 7), "kept_length"),
        (((1 << 31) - 1, (1 << 31) - 1, 2), (), "kept_length"),  # 0 in 32 bits
        ((2, 1, 1), (1, 4, 2, 9), "kept_without_token"),
        ((2, 1, 1), (5, 9, 2, 8), "kept_without_token"),
        ((1, 1, 1), (5, 9, 2), "kept_without_token"),
        ((2, 1, 1), (5, 1, 2, 9), "kept_order"),
        ((2, 1, 1), (5, 5, 2, 9), "kept_order"),
        ((2, 1, 1), (-1, 5, 2, 9), "kept_token_unknown"),
        ((1, 1, 2), (5, 2, 9, 10), "kept_token_unknown"),
    ],
)
def test_a_record_that_cannot_be_is_refused_by_name(
    counts: tuple[int, ...], ids: tuple[int, ...], reason: str
) -> None:
    assert kept_flaw(completion(counts, ids), 10) == reason


def test_a_torn_record_is_refused_by_name() -> None:
    torn = completion((1, 1, 1), (5, 2, 9), kept=Kept(counts=ints(1, 1, 1), ids=ints(5, 2)[:-1]))
    assert kept_flaw(torn, 10) == "kept_length"


def test_C002_what_was_truncated_without_a_record_is_refused_and_nothing_else() -> None:
    bare = completion((), (), kept=None)
    for sampling in (Sampling(top_p=0.9), Sampling(top_k=3), Sampling(min_p=0.1)):
        assert sampling.truncates
        assert kept_missing(bare, sampling) == "kept_missing"
        assert kept_missing(completion((1, 1, 1), (5, 2, 9)), sampling) is None
    assert kept_missing(bare, Sampling()) is None
    assert not Sampling(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1).truncates


def test_the_wire_gives_back_what_it_was_given() -> None:
    sent = completion((2, 0, 3), (1, 5, 7, 8, 9))
    raw = msgspec.msgpack.encode(sent)
    assert msgspec.msgpack.Decoder(Message).decode(raw) == sent

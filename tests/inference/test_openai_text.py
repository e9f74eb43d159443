"""Texts that grow by tokens: however these come, the pieces are the whole, by a real tokenizer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from letter_models import END, VOCABULARY, letters, tokenizer

from services.inference.openai.text import BROKEN, Text

TOKENIZER = tokenizer()
BYTES = st.lists(
    st.sampled_from([*letters("a é€😀\ufffd"), 0x80, END, VOCABULARY - 1]), max_size=30
)


def decode(ids: bytes) -> str:
    return str(TOKENIZER.decode(array("i", ids).tolist(), skip_special_tokens=True))


def raw(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def fed(ids: list[int], cuts: list[int], stops: Sequence[str] = ()) -> tuple[list[str], int | None]:
    """The pieces of the text with the tokens fed up to each cut, and where it was stopped."""
    text, pieces = Text(decode, stops), []
    places = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    for start, stop in zip([0, *places], places, strict=False):
        pieces.append(text.feed(raw(ids[start:stop]), last=stop == len(ids)))
        if text.stopped_at is not None:
            break
    return pieces, text.stopped_at


@given(BYTES, st.lists(st.integers(0, 30), max_size=8))
def test_the_pieces_are_the_text_of_all_tokens(ids: list[int], cuts: list[int]) -> None:
    pieces, _ = fed(ids, cuts)
    assert "".join(pieces) == decode(raw(ids))


@given(st.text("a é€😀", max_size=12), st.lists(st.integers(0, 30), max_size=8))
def test_no_piece_of_a_text_has_half_a_character(text: str, cuts: list[int]) -> None:
    pieces, _ = fed(letters(text), cuts)
    assert "".join(pieces) == text and not any(BROKEN in piece for piece in pieces)


@given(
    st.text("abc€", max_size=16),
    st.lists(st.text("abc€", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=10),
)
def test_a_stop_string_ends_it_in_the_same_place_however_the_tokens_come(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """As if the text were looked at after each of its characters."""
    ids = letters(text)
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    pieces, stopped_at = fed(ids, cuts, stops)
    if not ends:
        assert "".join(pieces) == text and stopped_at is None
        return
    before = text[: ends[0]]
    longest = max((stop for stop in stops if before.endswith(stop)), key=len)
    assert "".join(pieces) == before.removesuffix(longest)
    assert stopped_at == len(letters(before))


@pytest.mark.parametrize("tail", ["", "é", "s"])
def test_what_may_be_the_beginning_of_a_stop_string_is_held_until_it_is_none(tail: str) -> None:
    text = Text(decode, ["stop"])
    assert text.feed(raw(letters("a sto")), last=False) == "a "
    assert text.feed(raw(letters(tail)), last=True) == f"sto{tail}"

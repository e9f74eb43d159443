"""A prefix that was cut into chunks and joined again is what it was."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.bus.chunks import cut, head, join
from pipeline.messages import Completion, Kept, Span, Turn

WHOLE = Completion(
    group="g",
    member=1,
    ids=struct.pack("<6i", *range(6)),
    logprobs=struct.pack("<6f", *range(6)),
    spans=(Span(0, 4, "a:1"), Span(1, 2, "b:1")),
    kept=Kept(counts=struct.pack("<6i", 2, 1, 0, 3, 1, 2), ids=struct.pack("<9i", *range(9))),
    mask=((0, 2), (3, 5)),
    turns=(Turn("policy", 3), Turn("tool", 3)),
)


def test_a_cut_keeps_what_follows_with_positions_from_its_own_start() -> None:
    rest = cut(WHOLE, 4)
    assert rest.ids == struct.pack("<2i", 4, 5) and rest.logprobs == struct.pack("<2f", 4, 5)
    assert rest.spans == (Span(1, 2, "b:1"),) and rest.turns == (Turn("tool", 2),)
    assert rest.kept == Kept(counts=struct.pack("<2i", 1, 2), ids=struct.pack("<3i", 6, 7, 8))
    assert rest.mask == ((0, 1),)


@given(st.integers(0, 6))
def test_a_head_is_what_the_engine_had_then_and_with_the_rest_the_whole(stop: int) -> None:
    prefix = head(replace(WHOLE, finish="stop", routes="blob"), stop)
    assert prefix == _head(stop) and prefix.finish is prefix.routes is None
    assert join([prefix, cut(WHOLE, stop)]).spans == WHOLE.spans


@given(st.lists(st.integers(0, 6), max_size=4))
def test_chunks_join_to_the_whole(cuts: list[int]) -> None:
    ends = sorted({*cuts, 6} - {0})
    parts, start = [], 0
    for end in ends:
        parts.append(cut(_head(end), start))
        start = end
    joined = join(parts)
    assert joined.ids == WHOLE.ids and joined.logprobs == WHOLE.logprobs
    assert (joined.spans, joined.kept, joined.turns) == (WHOLE.spans, WHOLE.kept, WHOLE.turns)
    masked = {t for a, b in joined.mask for t in range(a, b)}
    assert masked == {0, 1, 3, 4}


def _head(end: int) -> Completion:
    """The first `end` tokens, as an engine would have had them then."""
    counts = struct.unpack("<6i", WHOLE.kept.counts) if WHOLE.kept else ()
    kept = sum(counts[:end])
    return Completion(
        group="g",
        member=1,
        ids=struct.pack(f"<{end}i", *range(end)),
        logprobs=struct.pack(f"<{end}f", *range(end)),
        spans=tuple(
            s for s in (Span(0, min(end, 4), "a:1"), Span(1, max(end - 4, 0), "b:1")) if s.tokens
        ),
        kept=Kept(
            counts=struct.pack(f"<{end}i", *counts[:end]),
            ids=struct.pack(f"<{kept}i", *range(kept)),
        ),
        mask=tuple((a, min(b, end)) for a, b in WHOLE.mask if a < end),
        turns=tuple(
            t for t in (Turn("policy", min(end, 3)), Turn("tool", max(end - 3, 0))) if t.tokens
        ),
    )

"""Prefixes are saved in chunks: cutting a completion at a token, and joining the parts again.

Pure. A chunk is a completion of its own, whose positions count from its first token.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from msgspec.structs import replace

from pipeline.messages import Completion, Kept, Span, Turn

R = TypeVar("R", Span, Turn)


def cut(completion: Completion, start: int) -> Completion:
    """What follows the first `start` tokens."""
    return replace(
        completion,
        ids=completion.ids[4 * start :],
        logprobs=completion.logprobs[4 * start :],
        spans=_skip(completion.spans, start),
        kept=completion.kept and _cut_kept(completion.kept, start),
        mask=tuple((max(a - start, 0), b - start) for a, b in completion.mask if b > start),
        turns=_skip(completion.turns, start),
    )


def head(completion: Completion, stop: int) -> Completion:
    """The first `stop` tokens, as a prefix (finish None). `routes` speak of all, and go."""
    kept = completion.kept
    return replace(
        completion,
        ids=completion.ids[: 4 * stop],
        logprobs=completion.logprobs[: 4 * stop],
        spans=_first(completion.spans, stop),
        kept=kept and _first_kept(kept, stop),
        mask=tuple((a, min(b, stop)) for a, b in completion.mask if a < stop),
        turns=_first(completion.turns, stop),
        routes=None,
        finish=None,
    )


def join(chunks: Sequence[Completion]) -> Completion:
    """The chunks as one completion; `finish`, `engine` and `routes` are those of the last."""
    kept = [c.kept for c in chunks if c.kept is not None]
    starts = accumulate((c.tokens for c in chunks), initial=0)
    return replace(
        chunks[-1],
        ids=b"".join(c.ids for c in chunks),
        logprobs=b"".join(c.logprobs for c in chunks),
        spans=_merge([s for c in chunks for s in c.spans]),
        kept=Kept(counts=b"".join(k.counts for k in kept), ids=b"".join(k.ids for k in kept))
        if kept
        else None,
        mask=tuple(
            (a + start, b + start)
            for c, start in zip(chunks, starts, strict=False)
            for a, b in c.mask
        ),
        turns=_merge([t for c in chunks for t in c.turns]),
    )


def _skip(runs: Sequence[R], start: int) -> tuple[R, ...]:
    out = []
    for run in runs:
        if run.tokens > start:
            out.append(replace(run, tokens=run.tokens - start))
        start = max(start - run.tokens, 0)
    return tuple(out)


def _first(runs: Sequence[R], stop: int) -> tuple[R, ...]:
    out = []
    for run in runs:
        if stop > 0:
            out.append(replace(run, tokens=min(run.tokens, stop)))
        stop -= run.tokens
    return tuple(out)


def _merge(runs: Sequence[R]) -> tuple[R, ...]:
    out: list[R] = []
    for run in runs:
        if out and replace(out[-1], tokens=run.tokens) == run:
            out[-1] = replace(run, tokens=out[-1].tokens + run.tokens)
        else:
            out.append(run)
    return tuple(out)


def _cut_kept(kept: Kept, start: int) -> Kept:
    skipped = _ids_of(kept, start)
    return Kept(counts=kept.counts[4 * start :], ids=kept.ids[4 * skipped :])


def _first_kept(kept: Kept, stop: int) -> Kept:
    return Kept(counts=kept.counts[: 4 * stop], ids=kept.ids[: 4 * _ids_of(kept, stop)])


def _ids_of(kept: Kept, positions: int) -> int:
    """How many ids the first positions have."""
    return sum(struct.unpack(f"<{positions}i", kept.counts[: 4 * positions]))

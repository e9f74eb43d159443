"""Whether the kept sets of a completion can be what its tokens were drawn from.

Which ids are kept is decided in `pipeline.model.truncation`; cutting and joining is in
`pipeline.bus.chunks`.
"""

from __future__ import annotations

import numpy as np

from pipeline.messages import Completion, Kept, Sampling

LENGTH = "kept_length"
UNKNOWN = "kept_token_unknown"
ORDER = "kept_order"
WITHOUT_TOKEN = "kept_without_token"
MISSING = "kept_missing"


def kept_flaw(completion: Completion, vocabulary: int) -> str | None:
    """Why the trainer cannot renormalise over what was kept, or None; ids are known to be whole."""
    if completion.kept is None:
        return None
    if not fits(completion.kept, completion.tokens):
        return LENGTH
    if not is_known(completion.kept.ids, vocabulary):
        return UNKNOWN
    counts = np.frombuffer(completion.kept.counts, "<i4")
    ids = np.frombuffer(completion.kept.ids, "<i4")
    token = np.repeat(np.arange(completion.tokens), counts)
    rises = ids[1:] > ids[:-1]
    if not (rises | (token[1:] != token[:-1])).all():
        return ORDER
    present = counts == 0
    present[token[ids == np.frombuffer(completion.ids, "<i4")[token]]] = True
    return None if present.all() else WITHOUT_TOKEN


def kept_missing(completion: Completion, sampling: Sampling) -> str | None:
    """Its name where tokens were drawn from some ids only, and nobody knows from which."""
    return MISSING if sampling.truncates and completion.kept is None else None


def fits(kept: Kept, tokens: int) -> bool:
    """Whether there is a count for each token, and as many ids as the counts say."""
    if len(kept.counts) != 4 * tokens or len(kept.ids) % 4:
        return False
    counts = np.frombuffer(kept.counts, "<i4")
    return bool((counts >= 0).all()) and int(counts.sum(dtype=np.int64)) * 4 == len(kept.ids)


def is_known(ids: bytes, vocabulary: int) -> bool:
    """Whether a model of so many ids knows each of these, int32."""
    numbers = np.frombuffer(ids, "<i4")
    return not numbers.size or bool(numbers.min() >= 0 and numbers.max() < vocabulary)

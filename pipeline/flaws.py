"""Which members can be used at all, however fresh they are. Pure.

How old they may be is in `versions`, what they were drawn from in `kept`; what a refusal does to a
group is in `services.training.considered`.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.kept import is_known, kept_flaw, kept_missing
from pipeline.messages import Completion, Prompt

LARGEST_LOGPROB = 1e-4
"""No probability is above 1, but for the rounding of whoever took its logarithm."""


def flaw(completion: Completion, prompt: Prompt, vocabulary: int) -> str | None:
    """Why the member cannot be used whatever its age, or None.

    One that has none can neither end a trainer nor spoil the step of its neighbours: its ids are
    among the `vocabulary` of the model, its numbers finite, its parts as long as its tokens.
    """
    return (
        _prompt_flaw(prompt, vocabulary)
        or _tokens_flaw(completion, vocabulary)
        or _runs_flaw(completion)
        or kept_missing(completion, prompt.sampling)
        or kept_flaw(completion, vocabulary)
    )


def _prompt_flaw(prompt: Prompt, vocabulary: int) -> str | None:
    if not prompt.ids:
        return "empty_prompt"
    if len(prompt.ids) % 4:
        return "prompt_length"
    if not is_known(prompt.ids, vocabulary):
        return "prompt_token_unknown"
    temperature = prompt.sampling.temperature
    return None if 0 < temperature < math.inf else "prompt_temperature"


def _tokens_flaw(completion: Completion, vocabulary: int) -> str | None:
    ids, logprobs = completion.ids, completion.logprobs
    if not ids:
        return "empty_completion"
    if len(ids) % 4 or len(logprobs) != len(ids):
        return "logprob_length"
    if not is_known(ids, vocabulary):
        return "token_unknown"
    numbers = np.frombuffer(logprobs, "<f4")
    if not np.isfinite(numbers).all():
        return "nonfinite_logprob"
    return "positive_logprob" if numbers.max() > LARGEST_LOGPROB else None


def _runs_flaw(completion: Completion) -> str | None:
    """Of what is told of runs of tokens: spans cover them all, masks lie among them."""
    lengths = [span.tokens for span in completion.spans]
    if min(lengths, default=0) < 0 or sum(lengths) != completion.tokens:
        return "span_length"
    inside = all(0 <= start <= stop <= completion.tokens for start, stop in completion.mask)
    return None if inside else "mask_range"

"""The canary: a short prompt that is the same in all of a run, and what each version makes of it.
† torch

An engine scores it as well (`services.inference.canary`), and the difference is what its numbers
are worth.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.messages import Canary
from services.training.ranks import Leader

TOKENS = 32


def prompt_of(config: Any, *, seed: int) -> tuple[int, ...]:
    """Ids from all over the vocabulary of a model, by its config in transformers' words.

    They ask nothing of data or of a tokenizer, and a run that goes on has the same.
    """
    noise, vocabulary = random.Random(seed), int(config.vocab_size)
    tokens = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    return tuple(int(noise.random() * vocabulary) for _ in range(tokens))


def canary_of(team: Leader, prompt: Sequence[int]) -> Canary:
    """Under the weights as they are trained, by a short pass of all ranks, which changes nothing.

    In the dtype of the back end: what the transport's dtype rounds away is part of the gap.
    """
    logprobs = team.logprobs(torch.tensor(prompt)).float().numpy().astype("<f4")
    return Canary(ids=array("i", prompt).tobytes(), logprobs=logprobs.tobytes())

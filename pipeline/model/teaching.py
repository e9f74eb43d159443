"""Log-probs of a sampled completion under another model: its own tokens', the likeliest's. † torch

The distribution is `sampling.logprobs`, over the kept ids alone where a token was drawn from some:
what the engine sampled from and the trainer differentiates, so that the three can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.messages import Kept
from pipeline.model.sampling import logprobs
from pipeline.protocols import Drawn

CHUNK_ELEMENTS = 1 << 26  # of float32 logits: 256 MB


class Taught(NamedTuple):
    """Float32 `logprobs` [T] of the tokens; `top_ids` (int64) and `top_logprobs` [T, k]."""

    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@torch.no_grad()
def teach(model: Any, ids: Sequence[int], drawn: Drawn, *, top_k: int = 0) -> Taught:
    """Of the tokens `ids` [T], given the prompt and those before each. On the CPU.

    Logits are made in chunks of about `CHUNK_ELEMENTS`: [T, V] never stands whole.
    """
    prompt = list(memoryview(drawn.prompt).cast("i"))
    row = torch.tensor([*prompt, *ids], device=model.device)
    hidden = model.base_model(input_ids=row[None, :-1], use_cache=False).last_hidden_state[0]
    hidden, own = hidden[len(prompt) - 1 :], row[len(prompt) :]  # the one before predicts each
    head, sets = model.get_output_embeddings(), _kept_sets(drawn.kept, len(own))
    rows = max(1, CHUNK_ELEMENTS // head.out_features)
    chunks = []
    for start in range(0, len(own), rows):
        at = slice(start, start + rows)
        temperature = torch.full((len(own[at]),), drawn.temperature, device=row.device)
        logits = _among(head(hidden[at]).float(), sets[at])
        chunks.append(_taught(logprobs(logits, temperature), own[at], top_k))
    return Taught(*(torch.cat(column).cpu() for column in zip(*chunks, strict=True)))


def _taught(logp: Tensor, own: Tensor, top_k: int) -> Taught:
    """Of a chunk: log-probs [C, V]. What fills up where fewer than k could be drawn is id 0."""
    top, top_ids = logp.topk(min(top_k, logp.shape[-1]), dim=-1)
    filled = torch.where(top.isinf(), torch.zeros_like(top_ids), top_ids)
    return Taught(logp.gather(-1, own.unsqueeze(-1)).squeeze(-1), filled, top)


def _among(logits: Tensor, sets: Sequence[Tensor]) -> Tensor:
    """Logits [C, V], -inf where an id could not be drawn; an empty set stands for all ids."""
    for row, kept in zip(logits, sets, strict=True):
        if kept.numel():
            some = row[kept.to(row.device)].clone()
            row.fill_(-math.inf)[kept.to(row.device)] = some
    return logits


def _kept_sets(kept: Kept | None, tokens: int) -> list[Tensor]:
    if kept is None:
        return [torch.zeros(0, dtype=torch.int64)] * tokens
    counts = list(memoryview(kept.counts).cast("i"))
    ids = torch.tensor(memoryview(kept.ids).cast("i").tolist(), dtype=torch.int64)
    return list(torch.split(ids, counts))

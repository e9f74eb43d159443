"""Log-probs and entropy of packed sequences: what a trainer knows of them under a model. † torch

One row without padding; positions that restart keep the sequences apart, which transformers sees
only without an attention mask and without a cache. The distribution is `sampling.logprobs`, over a
token's kept set alone where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ConfigError
from pipeline.model.sampling import kept_logprobs, logprobs
from pipeline.protocols import Pack, Packed

CHUNK_ELEMENTS = 1 << 24  # of float32 logits: 64 MB


class _Kept(NamedTuple):
    """The ids that each token of a chunk was drawn from, [C, K]; padded where `inside` is False.

    No mask over the vocabulary: the logits of a chunk stand anyhow, what is gathered from them is
    as small as the largest set, and each token's gradient goes back to its own few ids.
    """

    ids: Tensor
    inside: Tensor


def evaluate(model: Any, pack: Pack, *, chunk_elements: int = CHUNK_ELEMENTS) -> Packed:
    """Run a causal language model over the pack; differentiable in `logp`.

    Logits are made in chunks of about `chunk_elements`, once more in the backward pass where one
    is not enough: [T, V] never stands whole for a big vocabulary.
    """
    hidden = _hidden(model, pack.ids, pack.positions)
    head = model.get_output_embeddings()
    rows = max(1, chunk_elements // head.out_features)
    groups = _targets(pack)
    recompute = sum(map(len, groups)) > rows
    # Past the head's hooks: ranks that share its weight compare theirs, and differ in chunks.
    chunks = [
        _chunk(head.forward, hidden[at - 1], pack, at, recompute)
        for targets in groups
        for at in torch.split(targets, rows)
    ]
    logp, entropy = (torch.cat(column) for column in zip(*chunks, strict=True))
    order = torch.cat(groups)
    nothing = torch.zeros(pack.ids.shape, dtype=torch.float32, device=logp.device)
    return Packed(nothing.index_put((order,), logp), nothing.index_put((order,), entropy))


def moved(pack: Pack, device: torch.device) -> Pack:
    """The pack on the device; itself where it is there."""
    return Pack(*(column.to(device) for column in pack))


@torch.no_grad()
def check(model: Any) -> None:
    """Raise ConfigError where a model's sequences see each other, or its head is not all.

    A model may ignore that positions restart, and may scale or cap its logits after the head:
    both would train on other log-probs than the engine's, in silence.
    """
    ids = torch.arange(1, 9, device=model.device) % model.get_output_embeddings().weight.shape[0]
    positions = torch.arange(8, device=model.device) % 4
    hidden = _hidden(model, ids, positions)
    changed = torch.where(torch.arange(8, device=model.device) == 1, 0, ids)
    if not torch.equal(hidden[4:], _hidden(model, changed, positions)[4:]):
        rule = "packed sequences must not see each other"
        raise _unfit(model, rule, "choose an attention that honours restarting positions")
    if not _head_is_last(model, ids, positions, hidden):
        rule = "logits must come straight from the head"
        raise _unfit(model, rule, "models that scale or cap their logits are not supported yet")


def _unfit(model: Any, rule: str, remedy: str) -> ConfigError:
    return ConfigError("model.path", type(model).__name__, rule=rule, remedy=remedy)


def _head_is_last(model: Any, ids: Tensor, positions: Tensor, hidden: Tensor) -> bool:
    """Whether the head gets these hidden states [T, H], and what it gives are the logits.

    Large logits are planted at the head, since a cap leaves small ones as they are.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def plant(head: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        planted = torch.linspace(-100, 100, logits.numel(), device=logits.device)
        seen.append((inputs[0], planted.reshape(logits.shape).to(logits.dtype)))
        return seen[-1][1]

    hook = model.get_output_embeddings().register_forward_hook(plant)
    try:
        logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits
    finally:
        hook.remove()
    (given, planted), *more = seen
    return not more and torch.equal(given[0], hidden) and torch.equal(logits, planted)


def _hidden(model: Any, ids: Tensor, positions: Tensor) -> Tensor:
    """The last hidden state, [T, H]."""
    out = model.base_model(
        input_ids=ids[None], position_ids=positions[None], attention_mask=None, use_cache=False
    )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden


def _targets(pack: Pack) -> list[Tensor]:
    """The tokens that are predicted, all but the first of a sequence: those without a kept set,
    then those with one, where any has.
    """
    targets = (pack.positions > 0).nonzero().squeeze(-1)
    if not pack.kept_ids.numel():
        return [targets]
    kept = pack.kept_counts[targets] > 0
    return [targets[~kept], targets[kept]]


def _kept(pack: Pack, at: Tensor) -> _Kept | None:
    """The kept sets of the tokens `at` [C]; None where they have none."""
    counts = pack.kept_counts[at]
    most = int(counts.max()) if pack.kept_ids.numel() and at.numel() else 0
    if not most:
        return None
    rank = torch.arange(most, device=at.device)
    inside = rank < counts.unsqueeze(-1)
    first = (pack.kept_counts.cumsum(0) - pack.kept_counts)[at].unsqueeze(-1)
    return _Kept(pack.kept_ids[torch.where(inside, first + rank, first)], inside)


def _chunk(
    head: Callable[[Tensor], Tensor], hidden: Tensor, pack: Pack, at: Tensor, recompute: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy [C] of the tokens `at` [C] given hidden states [C, H]."""
    ids, temperature, kept = pack.ids[at].unsqueeze(-1), pack.temperature[at], _kept(pack, at)

    def compute(hidden: Tensor) -> tuple[Tensor, Tensor]:
        if kept is None:
            logp = logprobs(head(hidden), temperature)
            known, own = logp.detach(), ids
        else:
            logp = kept_logprobs(head(hidden), temperature, *kept)
            known = logp.detach().masked_fill(~kept.inside, 0)  # else 0 x -inf
            own = ((kept.ids == ids) & kept.inside).int().argmax(-1, keepdim=True)
        entropy = -(logp.detach().exp() * known).sum(-1)
        return logp.gather(-1, own).squeeze(-1), entropy

    if not recompute:
        return compute(hidden)
    out: tuple[Tensor, Tensor] = checkpoint(compute, hidden, use_reentrant=False)
    return out

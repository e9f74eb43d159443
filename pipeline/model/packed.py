"""Log-probs and entropy of packed sequences: what a trainer knows of them under a model. † torch

One row without padding; positions that restart keep the sequences apart, which transformers sees
only without an attention mask and without a cache. How each attends by itself is in `attention`.
The distribution is `sampling.logprobs`, over a token's kept set alone where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.errors import ConfigError
from pipeline.model.attention import attend_apart
from pipeline.model.chosen import chosen
from pipeline.model.sampling import kept_logprobs, logprobs
from pipeline.protocols import Pack, Packed

CHUNK_ELEMENTS = 1 << 26  # of float32 logits: 256 MB


class _Kept(NamedTuple):
    """The ids that each token of a chunk was drawn from, [C, K]; padded where `inside` is False.

    No mask over the vocabulary: the logits of a chunk stand anyhow, what is gathered from them is
    as small as the largest set, and each token's gradient goes back to its own few ids.
    """

    ids: Tensor
    inside: Tensor


def evaluate(model: Any, pack: Pack, *, chunk_elements: int = CHUNK_ELEMENTS) -> Packed:
    """Run a causal language model over the pack; differentiable in `logp` and `among`.

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
        _chunk(head.forward, before, pack, at, recompute)
        for targets in groups
        for before, at in zip(
            torch.split(hidden[targets - 1], rows), torch.split(targets, rows), strict=True
        )
    ]
    order = torch.cat(groups)
    logp, entropy, among = (
        _placed(torch.cat(column), order, pack.ids.numel()) for column in zip(*chunks, strict=True)
    )
    return Packed(logp, entropy, among if among.numel() else None)


def _placed(values: Tensor, order: Tensor, tokens: int) -> Tensor:
    """[T, ...]: the values of the tokens `order`, and 0 at all others."""
    nothing = values.new_zeros((tokens, *values.shape[1:]))
    return nothing.index_put((order,), values)


def moved(pack: Pack, device: torch.device) -> Pack:
    """The pack on the device; itself where it is there."""
    return Pack(*(column.to(device) for column in pack))


def prepare(model: Any, *, checkpoint_activations: bool = False) -> None:
    """Make a model ready for `evaluate`: its sequences attend by themselves, see `attention`.

    With `checkpoint_activations` a layer keeps only its input for the backward pass, and is run
    once more there. Raises ConfigError as `check` does, and where there are no layers to be had.
    """
    attend_apart(model)
    check(model)
    if checkpoint_activations:
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            rule = "its layers cannot be run once more in the backward pass"
            raise _unfit(model, rule, "leave out checkpoint_activations")
        for layer in layers:
            layer.forward = MethodType(_run_again, layer)


def _run_again(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    """A layer's forward. Without transformers' own switch, which needs dropout's to be on."""
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)


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
    then those with one, then those of which a teacher's likeliest ids are known, where any are.
    """
    targets = (pack.positions > 0).nonzero().squeeze(-1)
    groups = [targets]
    if pack.teacher_ids.shape[-1]:
        taught = pack.kl_weight[targets] > 0
        groups = [targets[~taught], targets[taught]]
    if pack.kept_ids.numel():
        kept = pack.kept_counts[groups[0]] > 0
        groups[:1] = [groups[0][~kept], groups[0][kept]]
    return groups


def _kept(pack: Pack, at: Tensor) -> _Kept | None:
    """The kept sets of the tokens `at` [C]; None where they have none."""
    counts = pack.kept_counts[at]
    most = int(counts.max()) if pack.kept_ids.numel() and at.numel() else 0
    if not most:
        return None
    rank = torch.arange(most, device=at.device)
    inside = rank < counts.unsqueeze(-1)
    first = (pack.kept_counts.cumsum(0) - pack.kept_counts)[at].unsqueeze(-1)
    return _Kept(pack.kept_ids[torch.where(inside, first + rank, 0)], inside)


def _chunk(
    head: Callable[[Tensor], Tensor], hidden: Tensor, pack: Pack, at: Tensor, recompute: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tokens `at` [C] given hidden states [C, H]: log-probs and entropy [C], and log-probs
    [C, k] of a teacher's likeliest ids, 0 where there are none.
    """
    ids, temperature, kept = pack.ids[at], pack.temperature[at], _kept(pack, at)
    likeliest = pack.teacher_ids[at]
    taught = likeliest.numel() > 0 and bool((pack.kl_weight[at] > 0).all())

    def compute(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if taught:
            return _with_likeliest(logprobs(head(hidden), temperature), ids, likeliest, kept)
        nothing = torch.zeros(likeliest.shape, device=hidden.device)
        if kept is None:
            return *chosen(head(hidden), temperature, ids), nothing
        return *_among_kept(head(hidden), temperature, ids, kept), nothing

    if not recompute:
        return compute(hidden)
    out: tuple[Tensor, Tensor, Tensor] = checkpoint(compute, hidden, use_reentrant=False)
    return out


def _among_kept(
    logits: Tensor, temperature: Tensor, ids: Tensor, kept: _Kept
) -> tuple[Tensor, Tensor]:
    logp = kept_logprobs(logits, temperature, *kept)
    known = logp.detach().masked_fill(~kept.inside, 0)  # else 0 x -inf
    own = ((kept.ids == ids.unsqueeze(-1)) & kept.inside).int().argmax(-1, keepdim=True)
    entropy = -(logp.detach().exp() * known).sum(-1)
    return logp.gather(-1, own).squeeze(-1), entropy


def _with_likeliest(
    logp: Tensor, ids: Tensor, likeliest: Tensor, kept: _Kept | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Given log-probs [C, V] over all ids; what is outside a kept set has none of the mass."""
    share = torch.zeros_like(logp[:, :1])
    drawn = logp.detach()
    entropy = -(drawn.exp() * drawn).sum(-1)
    if kept is not None:
        whole = ~kept.inside.any(-1, keepdim=True)
        some = logp.gather(-1, kept.ids).masked_fill(~(kept.inside | whole), -torch.inf)
        share = torch.where(whole, share, some.logsumexp(-1, keepdim=True))
        drawn = (some - share).detach()
        own = torch.where(kept.inside, drawn, 0.0)
        entropy = torch.where(whole.squeeze(-1), entropy, -(own.exp() * own).sum(-1))
    among = logp.gather(-1, likeliest) - share
    return (logp.gather(-1, ids.unsqueeze(-1)) - share).squeeze(-1), entropy, among

"""Groups as the bus would hand them over, batches of them in packs, and a small model to train."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.messages import Completion, Group, Member, Prompt, Sampling, Score, Span
from pipeline.protocols import Pack, Tokens
from pipeline.versions import Freshness, Unit
from services.training import batch, considered
from services.training.advantages import grpo
from services.training.briefs import Brief, brief
from services.training.considered import Considered, Rules
from services.training.packing import BY_TOKENS, Cost, layout, pack
from services.training.planned import Copied, Imitated
from services.training.sequences import dummy, imitated, joined, sampled

VOCABULARY = 23
MANY = 1 << 15


class Whole(Brief, frozen=True, kw_only=True):
    """A brief that has its cargo with it."""

    cargo: Group


class Batch(NamedTuple):
    """A batch whose cargo was at hand, in packs."""

    packs: tuple[Pack, ...]
    planned: batch.Batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planned, name)


def consider(group: Group, rules: Rules, *, vocabulary: int = MANY) -> Considered:
    """As it is judged when its cargo has been read."""
    told = brief(group, vocabulary)
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    return considered.consider(Whole(**fields, cargo=group), rules)


def build(
    judged: Sequence[Considered],
    rules: Rules,
    *,
    pack_tokens: int,
    examples: tuple[Imitated, ...] = (),
) -> Batch:
    """As one rank would make its packs."""
    planned = batch.build(judged, rules, examples=examples)
    cargo = {c.brief.group: c.brief.cargo for c in judged}  # type: ignore[attr-defined]
    made = [
        imitated(one, likeliest=planned.likeliest)
        if isinstance(one, Copied)
        else sampled(
            one,
            cargo[one.group].prompt,
            cargo[one.group].members[one.member],
            likeliest=planned.likeliest,
        )
        for one in planned.sequences
    ]
    numbers = pack([one.tokens for one in planned.sequences], pack_tokens)
    return Batch(tuple(joined([made[n] for n in members]) for members in numbers), planned)


def apart(packed: Pack) -> list[Pack]:
    """The pack's sequences, each as a pack."""
    starts = (packed.positions == 0).nonzero().flatten().tolist()
    lengths = [
        end - start for start, end in zip(starts, [*starts[1:], packed.ids.numel()], strict=True)
    ]
    kept = [int(counts.sum()) for counts in torch.split(packed.kept_counts, lengths)]
    columns = packed._asdict()
    parts = [
        torch.split(column, kept if name == "kept_ids" else lengths)
        for name, column in columns.items()
    ]
    return [Pack(*columns) for columns in zip(*parts, strict=True)]


def share(
    packs: Sequence[Pack], ranks: int, pack_tokens: int, *, cost: Cost = BY_TOKENS
) -> list[list[Pack]]:
    """What ranks would make of the sequences of these packs."""
    sequences = [one for each in packs for one in apart(each)]
    return [
        [
            joined([sequences[n] for n in numbers])
            if numbers
            else dummy(sequences[0].teacher_ids.shape[1])
            for numbers in mine
        ]
        for mine in layout([one.ids.numel() for one in sequences], pack_tokens, ranks, cost=cost)
    ]


def tiny_model(*, seed: int = 5, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config).eval()


def rules(
    *,
    step: int = 5,
    lag_max: int = 2,
    unit: Unit = "token",
    versions: int = 20,
) -> Rules:
    """Version v was made by step v."""
    steps = {version: version for version in range(versions)}
    return Rules(Freshness(step, steps, lag_max, unit), grpo)


def member(
    ids: Sequence[int],
    reward: float | None,
    *,
    logprobs: Sequence[float] | None = None,
    spans: Sequence[tuple[int, int]] | None = None,
    outcome: float | None = None,
    mask: tuple[tuple[int, int], ...] = (),
    finish: str = "stop",
) -> Member:
    """`spans` are (version, tokens); by default all tokens are of version 5."""
    given = [-0.5] * len(ids) if logprobs is None else logprobs
    completion = Completion(
        group="",
        member=0,
        ids=struct.pack(f"<{len(ids)}i", *ids),
        logprobs=struct.pack(f"<{len(given)}f", *given),
        spans=tuple(Span(v, t, "boot") for v, t in spans or [(5, len(ids))]),
        finish=finish,  # type: ignore[arg-type]
        mask=mask,
    )
    return Member(completion=completion, score=Score(reward=reward, outcome=outcome))


def group(
    name: str,
    members: Sequence[Member] | dict[int, Member],
    *,
    seq: int = 0,
    prompt: Sequence[int] = (3, 4),
    temperature: float = 1.0,
) -> Group:
    numbered = members if isinstance(members, dict) else dict(enumerate(members))
    return Group(
        prompt=Prompt(
            group=name,
            seq=seq,
            ids=struct.pack(f"<{len(prompt)}i", *prompt),
            members=len(numbered),
            sampling=Sampling(temperature=temperature),
        ),
        start_step=0,
        members=numbered,
    )


def tokens(logp: float | Sequence[float] | Tensor, behaviour: float, advantage: float) -> Tokens:
    """Tokens of one policy log-prob, one behaviour, one advantage; weight 1."""
    policy = torch.as_tensor(logp, dtype=torch.float32).reshape(-1)
    if not policy.requires_grad:
        policy = policy.clone().requires_grad_()
    anchor = torch.full_like(policy, behaviour).detach()
    numbers = torch.zeros(policy.shape, dtype=torch.int64)
    return Tokens(
        logp=policy,
        anchor=anchor,
        behaviour=anchor,
        advantage=torch.full_like(anchor, advantage),
        weight=torch.ones_like(anchor),
        sequence=numbers,
        lag=numbers,
        score=torch.full_like(anchor, advantage),
        segment=numbers,
        reference=anchor,
        teacher=anchor,
    )


def plain_logprobs(model: LlamaForCausalLM, ids: Sequence[int], temperature: float) -> Tensor:
    """Log-probs of ids[1:] of one sequence, unpacked, by the textbook."""
    logits = model(input_ids=torch.tensor([list(ids)])).logits[0, :-1] / temperature
    return torch.stack([logits[t].log_softmax(-1)[ids[t + 1]] for t in range(len(ids) - 1)])


def gradient(model: LlamaForCausalLM) -> Tensor:
    """All gradients, flat; zeroes where there is none."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten()
            for p in model.parameters()
        ]
    )

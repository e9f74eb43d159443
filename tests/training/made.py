"""Groups as the bus would hand them over, and a small model to train."""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.messages import Completion, Group, Member, Prompt, Sampling, Score, Span
from pipeline.protocols import Tokens
from pipeline.versions import Freshness, Unit
from services.training.advantages import grpo
from services.training.considered import Rules

VOCABULARY = 23


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
    vocabulary: int = 1 << 15,
) -> Rules:
    """Version v was made by step v."""
    steps = {version: version for version in range(versions)}
    return Rules(Freshness(step, steps, lag_max, unit), grpo, vocabulary)


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

"""At `lag.max = 0` the stream is synchronous RL: the weights after five steps equal, bit for bit,
those of the loop below, which samples, scores, and steps in turn, in one thread of one process.

Only the forward passes that sample are the engine's own, with shapes that do not depend on who is
in flight; everything else is written out once more.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from stream import MODEL, read_report, start, write_run
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.messages import Manifest, Prompt, Sampling, Work
from pipeline.model.attention import attend_apart
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.model.tokens import end_ids
from pipeline.order import index
from services.inference.engines.hf.engine import HfEngine
from services.training.checkpoints import found

STEPS, PER_STEP, MEMBERS, MAX_TOKENS, RATE, SEED = 5, 3, 4, 40, 1e-3, 3
ENGINE = {"use": "hf", "slots": 12, "max_length": 96, "fixed_shapes": True}


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_run_without_lag_is_a_synchronous_loop_bit_for_bit(
    tmp_path: Path, one_thread: None
) -> None:
    path = write_run(
        tmp_path,
        prompts=60,
        top={"steps": STEPS, "seed": SEED},
        groups={"members": MEMBERS, "per_step": PER_STEP},
        sampling={"max_tokens": MAX_TOKENS},
        lag={"max": 0},
        inference={"engine": ENGINE},
        training={"learning_rate": RATE, "warmup_steps": 0, "pack_tokens": 1},
    )
    up = start(tmp_path, "up", str(path))
    out, err = up.communicate(timeout=170)
    assert up.returncode == 0, out + err
    report = read_report(tmp_path)
    assert (report["steps"], report["lag_max"]) == (STEPS, 0)
    streamed = found(tmp_path / "runs" / "run")[-1]
    assert streamed.step == STEPS
    assert streamed.fingerprint == synchronous(tmp_path / "prompts.jsonl")


def synchronous(data: Path) -> str:
    """The fingerprint of the weights after the last step."""
    examples = [json.loads(line) for line in data.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    attend_apart(model)  # transformers' own has a gradient with other last bits
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0)
    cursor = 0
    for _ in range(STEPS):
        engine = engine_of(model)
        batch: list[tuple[list[int], list[int], list[float], float]] = []
        groups = 0
        while groups < PER_STEP:
            example = examples[index(cursor, size=len(examples), seed=SEED)]
            ids = tokenizer.encode(example["prompt"])
            group = sample(engine, f"{cursor:08d}", ids)
            cursor += 1
            rewards = torch.tensor(
                [
                    float(
                        tokenizer.decode(tokens, skip_special_tokens=True) == example["reference"]
                    )
                    for tokens, _ in group
                ],
                dtype=torch.float64,
            )
            if rewards.std() == 0:
                continue
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            groups += 1
            batch += [
                (ids, tokens, logprobs, float(a))
                for (tokens, logprobs), a in zip(group, advantages, strict=True)
            ]
        step(model, optimizer, batch)
    return fingerprint(named_parameters(model))


def engine_of(model: torch.nn.Module) -> HfEngine:
    """A new engine with these weights, and nothing of the former one's."""
    copy = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    copy.load_state_dict(model.state_dict())
    engine = HfEngine(
        copy, boot="plain", end_ids=end_ids(str(MODEL)), slots=12, max_length=96, fixed_shapes=True
    )
    live = engine.fingerprint()
    engine.stage(Manifest(version=0, step=0, epoch=1, fingerprint=live, location=""), None)
    assert engine.flip()
    return engine


def sample(engine: HfEngine, group: str, ids: list[int]) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probs of each member, one group at a time."""
    prompt = Prompt(
        group=group,
        seq=int(group),
        ids=array("i", ids).tobytes(),
        members=MEMBERS,
        sampling=Sampling(max_tokens=MAX_TOKENS),
        seed=SEED,
    )
    engine.add(Work(prompt=prompt, todo=tuple(range(MEMBERS))))
    done = []
    while engine.busy:
        done += engine.step()
    done.sort(key=lambda completion: completion.member)
    return [(array("i", c.ids).tolist(), array("f", c.logprobs).tolist()) for c in done]


class LogProb(torch.autograd.Function):
    """Of the ids [T, 1] under logits [T, V], and the gradient by the formula: autograd's own sums
    have the same value and other last bits."""

    @staticmethod
    def forward(ctx, logits, ids):
        x = logits - logits.max(-1, keepdim=True).values
        whole = x.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(x - whole, ids)
        return (x.gather(-1, ids) - whole)[:, 0]

    @staticmethod
    def backward(ctx, upstream):
        distribution, ids = ctx.saved_tensors
        gradient = distribution.exp() * -upstream[:, None]
        return gradient.scatter_add(-1, ids, upstream[:, None]), None


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: list[tuple[list[int], list[int], list[float], float]],
) -> None:
    """CISPO over every token of the batch, one sequence at a time, one denominator."""
    denominator = sum(len(tokens) for _, tokens, _, _ in batch)
    for prompt, tokens, behaviour, advantage in batch:
        ids = torch.tensor(prompt + tokens)
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, :-1]
        logp = LogProb.apply(model.lm_head(hidden), ids[1:, None])[len(prompt) - 1 :]
        ratio = (logp.detach() - torch.tensor(behaviour)).exp().clamp(0, 5)
        loss = ratio * (-torch.tensor(advantage, dtype=torch.float32) * logp)
        (loss * (1 / torch.tensor(float(denominator)))).sum().backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

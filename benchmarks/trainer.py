"""What a trained token costs: the trainer's step beside loops that users write. On one thread.

    python -m benchmarks.trainer                 # about three minutes

A Llama of 4 layers, 256 wide, with 32,000 ids, made from its config; 40 sequences with lengths from
a seeded log-normal, of 8 to 384 tokens. A repeat is one optimizer step over all of them; each side
has a model of its own, and their gradients have one norm, which is checked first.

- `packed`: the trainer's own step (`act_alone`): packs, log-probs and entropy, objective,
  statistics, clipping, AdamW; on the `torch` back end and on `deepspeed`, ZeRO stage 1.
- `bare`: forward, log-softmax, backward, clipping and AdamW, on the same packs and with the same
  attention, and nothing else; by plain torch and by a DeepSpeed engine.
- `padded`: batches in the order given, right-padded to their longest, as many sequences as the
  pack's tokens hold with their padding. `bucketed`: the same, sorted by length.
- `chunked` over `full` memory: the growth of a process's peak while one pack of 4,096 tokens gets
  its log-probs and gradients: by `evaluate` as it is set by default, and by whole logits. Each in a
  child of its own: VmHWM at its end, less what was resident before the pass.

Sides alternate, and medians are taken of both the clock on the wall and the thread's processor
time; bars are held by the clock. For each bar a line says whether it held; the last line is one
JSON object. Exit 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.messages import Completion, Group, Member, Prompt, Sampling, Score, Span
from pipeline.model.attention import attend_apart
from pipeline.model.packed import evaluate, prepare
from pipeline.protocols import Pack, Rank, Tokens
from pipeline.versions import Freshness
from services.training.advantages import grpo
from services.training.backends.deepspeed import DeepSpeedBackend
from services.training.backends.torch import TorchBackend
from services.training.batch import build
from services.training.briefs import brief
from services.training.considered import Rules, consider
from services.training.objective import Objective
from services.training.optimize import act_alone
from services.training.packing import pack as packed
from services.training.planned import Planned
from services.training.sequences import joined, sampled

VOCABULARY, HIDDEN, LAYERS = 32_000, 256, 4
GROUPS, MEMBERS, PROMPT_TOKENS, SEED = 10, 4, 4, 7
TAIL_MEDIAN, TAIL_SIGMA, LONGEST, SHORTEST = 48, 1.1, 384, 8
PACK_TOKENS, MEMORY_TOKENS = 1024, 4096
RATE, CLIP_NORM = 1e-5, 1.0
BETAS = (0.9, 0.95)
BARS = {
    "packed_over_bare": 0.9,
    "deepspeed_over_bare": 0.9,
    "packed_over_padded": 1.5,
    "packed_over_bucketed": 1.0,
}
MEMORY_BAR = 0.7


class Spent(NamedTuple):
    """Seconds by the clock on the wall, and of the thread on the processor."""

    wall: float
    thread: float


Side = Callable[[], float]
"""One optimizer step over the mix; the gradient's norm."""


def main() -> int:
    """All sections; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each side, alternating")
    parser.add_argument("--peak", choices=PASSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print(peak_growth(options.peak))
        return 0
    found = compare(mix(), options.repeats)
    memory = {name: in_child(name) for name in PASSES}
    found["chunked_over_full_memory"] = round(memory["chunked"] / memory["full"], 3)
    bars = {f"{name} {found[name]:.3f} >= {bar}": found[name] >= bar for name, bar in BARS.items()}
    ratio = found["chunked_over_full_memory"]
    bars[f"chunked_over_full_memory {ratio:.3f} <= {MEMORY_BAR}"] = ratio <= MEMORY_BAR
    for claim, held in bars.items():
        print(f"{'held' if held else 'NOT HELD'}: {claim}")
    found |= {f"{name}_growth_bytes": grown for name, grown in memory.items()}
    print(json.dumps(found | {"held": all(bars.values()), "load": os.getloadavg()[0]}))
    return 0 if all(bars.values()) else 1


# What is trained.


def make_model() -> Any:
    """The same weights every time."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=11 * HIDDEN // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MEMORY_TOKENS,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def mix() -> list[Pack]:
    """Most are short; half of each group has a reward."""
    made = sequences()
    numbers = packed([tokens_of(one) for one in made], PACK_TOKENS)
    return [joined([made[n] for n in members]) for members in numbers]


def sequences() -> list[Pack]:
    """In the order of admission."""
    rng = random.Random(SEED)
    rules = Rules(Freshness(0, {0: 0}, 0, "token"), grpo)
    groups = {f"g{number}": group(number, rng) for number in range(GROUPS)}
    batch = build([consider(brief(g, VOCABULARY), rules) for g in groups.values()], rules)
    planned = [one for one in batch.sequences if isinstance(one, Planned)]
    return [
        sampled(one, groups[one.group].prompt, groups[one.group].members[one.member], likeliest=0)
        for one in planned
    ]


def group(number: int, rng: random.Random) -> Group:
    """Completions of any length, of no sense."""
    tails = [rng.lognormvariate(0, TAIL_SIGMA) * TAIL_MEDIAN for _ in range(MEMBERS)]
    lengths = [min(max(round(n), SHORTEST), LONGEST) - PROMPT_TOKENS for n in tails]
    return Group(
        prompt=Prompt(
            group=f"g{number}",
            seq=number,
            ids=drawn(PROMPT_TOKENS, rng),
            members=MEMBERS,
            sampling=Sampling(max_tokens=LONGEST),
        ),
        start_step=0,
        members={m: member(length, m % 2, rng) for m, length in enumerate(lengths)},
    )


def member(tokens: int, reward: float, rng: random.Random) -> Member:
    """Of the version that is trained."""
    completion = Completion(
        group="",
        member=0,
        ids=drawn(tokens, rng),
        logprobs=array("f", [-10.0] * tokens).tobytes(),
        spans=(Span(0, tokens, "boot"),),
        finish="stop",
    )
    return Member(completion=completion, score=Score(reward=reward))


def drawn(tokens: int, rng: random.Random) -> bytes:
    """Token ids as they travel."""
    return array("i", [rng.randrange(VOCABULARY) for _ in range(tokens)]).tobytes()


# The sides.


def compare(packs: list[Pack], repeats: int) -> dict[str, Any]:
    """Ratios of the medians' rates, which are of the same tokens, and what they are made of."""
    sides: dict[str, Side] = {
        "packed": partial(trained, TorchBackend(make_model(), clip_norm=CLIP_NORM), packs),
        "bare": bare(packs),
        "deepspeed": partial(trained, DeepSpeedBackend(make_model(), clip_norm=CLIP_NORM), packs),
        "bare_deepspeed": bare_deepspeed(packs),
        "padded": padded(sequences()),
        "bucketed": padded(sorted(sequences(), key=tokens_of)),
    }
    check_alike({name: step() for name, step in sides.items()})
    rounds = []
    for number in range(repeats):
        order = [*sides] if number % 2 else [*reversed(sides)]
        rounds.append({name: timed(sides[name]) for name in order})
    tokens = sum(map(tokens_of, packs))
    found: dict[str, Any] = {"tokens": tokens, "packs": len(packs)}
    for name, fast, slow in RATIOS:
        found[name] = median(r[slow].wall / r[fast].wall for r in rounds)
        found[f"{name}_by_thread_time"] = median(r[slow].thread / r[fast].thread for r in rounds)
    rates = {name: median(tokens / r[name].wall for r in rounds) for name in sides}
    return found | {f"{name}_tokens_per_second": rate for name, rate in rates.items()}


RATIOS = (
    ("packed_over_bare", "packed", "bare"),
    ("deepspeed_over_bare", "deepspeed", "bare_deepspeed"),
    ("packed_over_padded", "packed", "padded"),
    ("packed_over_bucketed", "packed", "bucketed"),
)


def check_alike(norms: dict[str, float]) -> None:
    """Sides that differ would not do the same work."""
    expected = norms["bare"]
    wrong = {name: n for name, n in norms.items() if abs(n - expected) > 1e-3 * expected}
    assert expected > 0 and not wrong, f"gradients of other norms than {expected}: {wrong}"


def timed(step: Side) -> Spent:
    """One go."""
    wall, thread = time.perf_counter(), time.thread_time()
    step()
    return Spent(time.perf_counter() - wall, time.thread_time() - thread)


def median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 4)


def tokens_of(pack: Pack) -> int:
    return pack.ids.numel()


def policy_gradient(tokens: Tokens) -> Tensor:
    """The plainest loss of all, so that the bare loops can have it, too."""
    return -tokens.advantage * tokens.logp


def trained(rank: Rank, packs: Sequence[Pack]) -> float:
    """As the service does it."""
    return act_alone(rank, Objective(policy_gradient), packs, RATE).result.grad_norm


def logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probs [..., T - 1] of ids [..., T] but the first, from logits [..., T, V]."""
    all_ids = logits[..., :-1, :].float().log_softmax(-1)
    return all_ids.gather(-1, ids[..., 1:].unsqueeze(-1)).squeeze(-1)


def bare_loss(logits: Tensor, pack: Pack) -> Tensor:
    """Of logits [T, V]."""
    logp = logprobs(logits, pack.ids)
    return -(pack.advantage[1:] * pack.weight[1:] * logp).sum()


def bare(packs: Sequence[Pack]) -> Side:
    """Plain torch on the same rows."""
    model = make_model()
    attend_apart(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)

    def step() -> float:
        for pack in packs:
            inputs = {"input_ids": pack.ids[None], "position_ids": pack.positions[None]}
            bare_loss(model(**inputs, use_cache=False).logits[0], pack).backward()
        norm = clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    return step


def bare_deepspeed(packs: Sequence[Pack]) -> Side:
    """A DeepSpeed engine on the same rows; `join` has made the process group."""
    model = make_model()
    attend_apart(model)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": len(packs),
        "gradient_clipping": CLIP_NORM,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 1},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.eval()

    def step() -> float:
        for pack in packs:
            inputs = {"input_ids": pack.ids[None], "position_ids": pack.positions[None]}
            loss = bare_loss(engine(**inputs, use_cache=False).logits[0], pack)
            engine.backward(loss * len(packs))  # which it takes the mean of
            engine.step()
        return float(engine.get_global_grad_norm())

    return step


def padded(in_order: Sequence[Pack]) -> Side:
    """Plain torch on right-padded batches of the same budget, padding included."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
    batches = [stacked(batch) for batch in within(in_order)]

    def step() -> float:
        for ids, mask, signal in batches:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            (-signal[:, 1:] * logprobs(logits, ids)).sum().backward()
        norm = clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    return step


def within(sequences: list[Pack]) -> Iterator[list[Pack]]:
    """Neighbours, as many as have at most PACK_TOKENS with their padding."""
    batch: list[Pack] = []
    for sequence in sequences:
        longest = max(map(tokens_of, [*batch, sequence]))
        if (len(batch) + 1) * longest > PACK_TOKENS:
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def stacked(batch: Sequence[Pack]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask, and advantage x weight, each [B, L]."""
    ids = pad_sequence([one.ids for one in batch], batch_first=True)
    mask = pad_sequence([torch.ones_like(one.ids) for one in batch], batch_first=True)
    signal = pad_sequence([one.advantage * one.weight for one in batch], batch_first=True)
    return ids, mask, signal


# Memory.


def row() -> tuple[Tensor, Tensor]:
    """Ids and positions of one pack, of sequences of one length."""
    ids = torch.arange(MEMORY_TOKENS) * 7 % VOCABULARY
    return ids, torch.arange(MEMORY_TOKENS) % LONGEST


def chunked(model: Any) -> None:
    """As the trainer does it, by default."""
    ids, positions = row()
    zeros = torch.zeros(MEMORY_TOKENS)
    like = mix()[0]
    empty = Pack(*(column.new_zeros((MEMORY_TOKENS, *column.shape[1:])) for column in like))
    pack = empty._replace(
        ids=ids, positions=positions, temperature=zeros + 1, kept_ids=like.kept_ids[:0]
    )
    evaluate(model, pack).logp.sum().backward()


def full(model: Any) -> None:
    """By all logits at once."""
    ids, positions = row()
    logits = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    (logprobs(logits, ids) * (positions[1:] > 0)).sum().backward()


PASSES = {"chunked": chunked, "full": full}


def peak_growth(name: str) -> int:
    """Bytes at the peak beyond what the model and its gradients take."""
    model = make_model()
    prepare(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    resident = said_of_memory("VmRSS")
    PASSES[name](model)
    return said_of_memory("VmHWM") - resident


def said_of_memory(name: str) -> int:
    """Bytes, by the kernel; ru_maxrss would begin with the peak of the process that started us."""
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", status)
    return int(kilobytes) * 1024


def in_child(name: str) -> int:
    """The same in a process of its own, since a peak never falls."""
    command = [sys.executable, "-m", "benchmarks.trainer", "--peak", name]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(said.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())

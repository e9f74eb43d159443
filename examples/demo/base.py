"""Makes the demo's base model: a small Llama that knows the task and makes slips.

Reinforcement learning sharpens what a base knows and does not teach the skill. So the base first
learns from clean demonstrations, then from sloppy ones, and must pass a gate: right most of the
time when greedy, wrong most of the time when sampled, by slips that are independent.
"""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from task import END, PAD, PAIRS, REPEATS, VOCABULARY, Task, draw, sloppy_answer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

logging.disable_progress_bar()  # beside what is told line by line

SEED = 7
MAX_POSITIONS = 256
MAX_NEW_TOKENS = 128
IGNORE = -100
IDS = {token: id for id, token in enumerate(VOCABULARY)}


class Phase(NamedTuple):
    """A stretch of supervised training on `rows` demonstrations a step."""

    name: str
    steps: int
    rows: int
    learning_rate: float
    pairs: tuple[int, int] = PAIRS
    repeats: tuple[int, int] = REPEATS
    wrong_digit: float = 0.0
    wrong_repeats: float = 0.0


PHASES = (
    Phase("sort", 130, 64, 3e-3, repeats=(1, 1)),
    Phase("repeat", 160, 64, 3e-3),
    Phase("sloppy", 60, 64, 1e-3, wrong_digit=0.05, wrong_repeats=0.3),
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; the end token is special; an unknown character is an error."""
    tokenizer = Tokenizer(models.WordLevel(IDS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def make_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=IDS[END],
        pad_token_id=IDS[PAD],
        initializer_range=0.09,  # about 1/sqrt(width): with .02 sorting is found late or not at all
    )
    return LlamaForCausalLM(config)


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids, padded on the right: [B, T]."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


def demonstrations(phase: Phase, rng: random.Random) -> tuple[Tensor, Tensor]:
    """A batch of ids [B, T] and of next-token targets [B, T], the prompt's ignored."""
    ids: list[list[int]] = []
    targets: list[list[int]] = []
    for _ in range(phase.rows):
        task = draw(rng, pairs=phase.pairs, repeats=phase.repeats)
        answer = sloppy_answer(
            task, rng, wrong_digit=phase.wrong_digit, wrong_repeats=phase.wrong_repeats
        )
        row = [IDS[char] for char in task.prompt + answer + END]
        ids.append(row[:-1])
        first = len(task.prompt) - 1
        targets.append([IGNORE] * first + row[first + 1 :])
    return pad(ids, IDS[PAD]), pad(targets, IGNORE)


def rates(phase: Phase) -> Iterator[float]:
    """A learning rate for each step: up in ten steps, level, down to a tenth in the last third."""
    for step in range(phase.steps):
        left = (phase.steps - step) / phase.steps
        yield phase.learning_rate * min(1.0, (step + 1) / 10) * max(0.1, min(1.0, 3 * left))


def imitate(model: LlamaForCausalLM, phase: Phase, rng: random.Random) -> None:
    """Train on one phase, printing the loss in nats a token."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    started = time.monotonic()
    for step, rate in enumerate(rates(phase), start=1):
        ids_BT, targets_BT = demonstrations(phase, rng)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
        loss = cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            seconds = time.monotonic() - started
            print(f"{phase.name} step={step} loss={loss.item():.4f} seconds={seconds:.0f}")


@torch.no_grad()
def complete(model: LlamaForCausalLM, prompts: Sequence[str], *, sample: bool) -> list[str]:
    """A completion of each prompt, without its end token: greedy, or at temperature 1."""
    rows = [[IDS[char] for char in prompt] for prompt in prompts]
    ids_BT = pad([row[::-1] for row in rows], IDS[PAD]).flip(1)
    outputs_BT = model.generate(
        ids_BT,
        attention_mask=(ids_BT != IDS[PAD]).long(),
        do_sample=sample,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    new_BT = outputs_BT[:, ids_BT.shape[1] :].tolist()
    return ["".join(VOCABULARY[id] for id in row).partition(END)[0] for row in new_BT]


class Gate(NamedTuple):
    """What the base scores on the held-out prompts; shares of 0 to 1."""

    greedy: float
    sampled: float
    pass_at_8: float
    zero_signal: float

    @property
    def passed(self) -> bool:
        return self.greedy >= 0.8 and 0.15 <= self.sampled < 0.3 and self.pass_at_8 >= 0.7


def measure(model: LlamaForCausalLM, tasks: Sequence[Task], *, attempts: int = 8) -> Gate:
    """Greedy once, and `attempts` samples of each task."""
    prompts = [task.prompt for task in tasks]
    answers = [task.answer for task in tasks]

    def right(sample: bool) -> list[bool]:
        texts = complete(model, prompts, sample=sample)
        return [text == answer for text, answer in zip(texts, answers, strict=True)]

    greedy = right(sample=False)
    sampled = torch.tensor([right(sample=True) for _ in range(attempts)]).float()
    solved = sampled.sum(0)  # [tasks], of `attempts`
    return Gate(
        greedy=sum(greedy) / len(tasks),
        sampled=sampled.mean().item(),
        pass_at_8=(solved > 0).float().mean().item(),
        zero_signal=((solved == 0) | (solved == attempts)).float().mean().item(),
    )


def save(model: LlamaForCausalLM, folder: Path) -> LlamaForCausalLM:
    """Store in bfloat16, with the tokenizer; returns what was stored, loaded as float32."""
    model.generation_config = GenerationConfig(eos_token_id=IDS[END], pad_token_id=IDS[PAD])
    model.to(torch.bfloat16).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make_base(folder: Path, heldout: Sequence[Task]) -> None:
    """Make, store and measure the base; a base outside the gate is an error."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    model = make_model()
    print(f"base seed={SEED} parameters={model.num_parameters()} threads={torch.get_num_threads()}")
    for phase in PHASES:
        imitate(model, phase, rng)
    gate = measure(save(model, folder), heldout)
    print(f"wrote {folder}: {gate}")
    if not gate.passed:
        raise SystemExit(f"{folder}: the base is outside the gate; try another SEED in base.py")

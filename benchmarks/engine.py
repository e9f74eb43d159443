"""The embedded engine by itself: against `generate`, across a flip, and with fixed shapes.

    python -m benchmarks.engine                 # about three minutes

The demo's model on one thread, sampling at temperature 1 to lengths that are given, so that both
sides make the same tokens' worth. `generate` works through batches of 64 in the order given, each
as long as its longest; what it makes beyond a member's length counts for nothing.

- `equal`: 64 prompts of one length, 96 tokens each. What the step loop costs.
- `long_tail`: 256 prompts, lengths from a seeded log-normal. What continuous batching gains.
- `fixed_shapes`: the engine with fixed shapes over the engine without, on both.
- `pause`: between two tokens of 64 sequences, across 100 flips of versions staged meanwhile, less
  the median without; against one decode step.

Sides alternate, and medians are taken of both the clock on the wall and the thread's processor
time. For each bar a line says whether it held; the last line is one JSON object. Exit 1 where one
did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import GenerationConfig, PreTrainedModel

from pipeline.messages import Manifest, Prompt, Sampling, Work
from pipeline.model.fingerprint import describe, fingerprint_of, named_parameters
from pipeline.model.load import load_model
from pipeline.protocols import Engine
from pipeline.weights.shm import ShmTransport
from services.inference.engines.hf.engine import HfEngine

MODEL = Path(__file__).resolve().parent.parent / "examples" / "demo" / "model"
SLOTS, PROMPT_TOKENS, EQUAL_TOKENS, CONTEXT = 64, 18, 96, 256
TAIL_MEMBERS, TAIL_MEDIAN, TAIL_SIGMA, SEED = 256, 32, 1.0, 5
VOCABULARY = range(2, 22)
FLIPS, PLAIN_STEPS = 100, 8
EQUAL_BAR, TAIL_BAR, PAUSE_BAR = 0.5, 1.0, 1.0


class Member(NamedTuple):
    """A prompt, and how many tokens are to be made of it."""

    prompt: list[int]
    tokens: int


class Spent(NamedTuple):
    """Seconds by the clock on the wall, and of the thread on the processor."""

    wall: float
    thread: float


Members = Sequence[Member]
Act = Callable[[Members], None]


def main() -> int:
    """All sections; the exit code."""
    parser = argparse.ArgumentParser(description="The embedded engine against generate.")
    parser.add_argument("--repeats", type=int, default=7, help="of each side, alternating")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loads = {"equal": equal(), "long_tail": long_tail()}
    ratios = {name: compare(members, options.repeats) for name, members in loads.items()}
    pause = measure_pause()
    bars = {
        f"equal {ratios['equal']['ratio']:.3f} >= {EQUAL_BAR}": ratios["equal"]["ratio"]
        >= EQUAL_BAR,
        f"long_tail {ratios['long_tail']['ratio']:.3f} >= {TAIL_BAR}": ratios["long_tail"]["ratio"]
        >= TAIL_BAR,
        f"pause, median {pause['median_steps']:.2f} and p95 {pause['p95_steps']:.2f} decode steps"
        f" <= {PAUSE_BAR}": max(pause["median_steps"], pause["p95_steps"]) <= PAUSE_BAR,
    }
    for claim, held in bars.items():
        print(f"{'held' if held else 'NOT HELD'}: {claim}")
    found = {"hf_over_static_generate": ratios, "pause": pause}
    print(json.dumps(found | {"held": all(bars.values()), "load": os.getloadavg()[0]}))
    return 0 if all(bars.values()) else 1


# What is to be made.


def equal() -> Members:
    """One full batch."""
    return drawn([EQUAL_TOKENS] * SLOTS)


def long_tail() -> Members:
    """Most are short; the longest fill the context."""
    rng = random.Random(SEED)
    lengths = (rng.lognormvariate(0, TAIL_SIGMA) * TAIL_MEDIAN for _ in range(TAIL_MEMBERS))
    return drawn([min(max(round(n), 4), CONTEXT - PROMPT_TOKENS) for n in lengths])


def drawn(lengths: Sequence[int]) -> Members:
    """Seeded prompts for these lengths."""
    rng = random.Random(SEED)
    return [Member([rng.choice(VOCABULARY) for _ in range(PROMPT_TOKENS)], n) for n in lengths]


# The sides.


def compare(members: Members, repeats: int) -> dict[str, float]:
    """Medians of the rates, and of the ratios of repeats side by side."""
    engines = {fixed: make_engine(fixed_shapes=fixed) for fixed in (False, True)}
    model: Any = load_model(str(MODEL), dtype="float32")
    sides: dict[str, Act] = {
        "generate": lambda members: generate(model, members),
        "engine": lambda members: answer(engines[False], members),
        "fixed": lambda members: answer(engines[True], members),
    }
    for act in sides.values():
        act(members[:SLOTS])
    rounds = []
    for number in range(repeats):
        order = [*sides] if number % 2 else [*reversed(sides)]
        rounds.append({name: timed(sides[name], members) for name in order})
    useful = sum(member.tokens for member in members)
    return {
        "ratio": median(r["generate"].wall / r["engine"].wall for r in rounds),
        "ratio_by_thread_time": median(r["generate"].thread / r["engine"].thread for r in rounds),
        "fixed_shapes": median(r["engine"].thread / r["fixed"].thread for r in rounds),
        **{
            f"{name}_tokens_per_second": median(useful / r[name].wall for r in rounds)
            for name in sides
        },
    }


def timed(act: Act, members: Members) -> Spent:
    """One go."""
    wall, thread = time.perf_counter(), time.thread_time()
    act(members)
    return Spent(time.perf_counter() - wall, time.thread_time() - thread)


def median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 4)


@torch.inference_mode()
def generate(model: PreTrainedModel, members: Members) -> None:
    """Batch after batch, each to its longest member's end."""
    for first in range(0, len(members), SLOTS):
        batch = members[first : first + SLOTS]
        longest = max(member.tokens for member in batch)
        ids = torch.tensor([member.prompt for member in batch])
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=longest,
            min_new_tokens=longest,
            pad_token_id=0,
        )
        made: Any = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
        assert made.shape == (len(batch), PROMPT_TOKENS + longest)


def make_engine(*, fixed_shapes: bool = False) -> HfEngine:
    """Serving version 0; no token ends a member."""
    model: Any = load_model(str(MODEL), dtype="float32")
    engine = HfEngine(
        model, boot="bench:1", end_ids=frozenset(), slots=SLOTS, fixed_shapes=fixed_shapes
    )
    engine.stage(manifest(0, engine.fingerprint()), transport=ShmTransport(run="bench"))
    assert engine.flip()
    return engine


def manifest(version: int, fingerprint: str) -> Manifest:
    """Of weights that are live already."""
    return Manifest(version=version, step=version, epoch=1, fingerprint=fingerprint, location="")


def answer(engine: Engine, members: Members) -> None:
    """Every member, as soon as there is a place."""
    for number, member in enumerate(members):
        engine.add(work_of(number, member))
    made = 0
    while engine.busy:
        made += sum(completion.tokens for completion in engine.step())
    assert made == sum(member.tokens for member in members)


def work_of(number: int, member: Member) -> Work:
    """A group of one."""
    prompt = Prompt(
        group=f"g{number}",
        seq=number,
        ids=array("i", member.prompt).tobytes(),
        members=1,
        sampling=Sampling(max_tokens=member.tokens),
    )
    return Work(prompt=prompt, todo=(0,))


# The flip.


def measure_pause() -> dict[str, float]:
    """Gaps between two tokens in seconds: with a flip between them, and without."""
    plain: list[float] = []
    across: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        for gap, flipped in gaps(make_engine(), ShmTransport(run="bench", folder=folder)):
            (across if flipped else plain).append(gap)
    step = statistics.median(plain)
    pauses = sorted(gap - step for gap in across)
    chance = sorted(gap - step for gap in random.Random(0).sample(plain, len(across)))
    at_95 = round(0.95 * len(pauses)) - 1
    return {
        "decode_step_seconds": round(step, 6),
        "median_steps": round(statistics.median(pauses) / step, 3),
        "p95_steps": round(pauses[at_95] / step, 3),
        "p95_steps_without_a_flip": round(chance[at_95] / step, 3),
        "flips": len(pauses),
    }


def gaps(engine: HfEngine, transport: ShmTransport) -> Iterator[tuple[float, bool]]:
    """Until enough flips were seen: of steps that prefill nothing, and none while staging."""
    version, since, last = 0, 0, 0.0
    while version < FLIPS:
        if not engine.busy:
            for number, member in enumerate(equal()):
                engine.add(work_of(number, member))
            last = 0.0
        if since == PLAIN_STEPS:
            send(engine, transport, version + 1)
            last = 0.0
        flip, since = engine.flip(), since + 1
        engine.step()
        if last and not engine.last_step.prefill and (flip or since <= PLAIN_STEPS):
            yield engine.last_step.ended - last, bool(flip)
        last = engine.last_step.ended
        if flip:
            version, since = flip.version, 0


def send(engine: HfEngine, transport: ShmTransport, version: int) -> None:
    """Another version of the same size, on its way."""
    model: Any = load_model(str(MODEL), dtype="float32")
    with torch.no_grad():
        model.model.norm.weight += version * 1e-3
    named = named_parameters(model)
    entries = tuple(describe(name, tensor) for name, tensor in named)
    location = transport.send(version, named, epoch=1)
    engine.stage(
        Manifest(
            version=version,
            step=version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=location,
            tensors=entries,
        ),
        transport,
    )


if __name__ == "__main__":
    sys.exit(main())

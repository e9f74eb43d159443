"""What new weights cost an engine that decodes: staged beside it, and paused for all the way.

    python -m benchmarks.weights                    # hf: four minutes
    python -m benchmarks.weights --engine vllm      # where vLLM is; on a CPU nothing is barred

A Llama of SmolLM2-135M's shape with random weights, in bfloat16 and in float32, on one thread, with
32 sequences in flight all the time. Two versions lie in shared memory, and come in turn:

- `staged`: as the service does it. Received and verified in the background while the engine
  decodes, then flipped to between two steps, and proven by a fingerprint in a thread from then on.
  The pause is the gap between two tokens across the flip, less the median gap where nothing else
  goes on.
- `paused`: as engines do that stop for a whole transfer. No step from when the version is announced
  until it serves: received, verified, adopted. The pause is all of that. Of an engine that loads in
  place the copy would come on top, which is left out: `hf` exchanges pointers either way.

Beside them stand the tokens a second while a version is staged, and while it is proven, over those
while nothing is: what the background costs, by the clock and by the processor's time of the thread
that owns the engine, which a busy machine cannot stretch. For each bar a line says whether it held;
the last line is one JSON object. Exit 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from math import isfinite
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from msgspec.structs import replace
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline import plugins
from pipeline.families import ENGINES
from pipeline.messages import Manifest, Prompt, Sampling, Work
from pipeline.model.fingerprint import describe_all, fingerprint_of, named_parameters
from pipeline.model.load import DTYPES
from pipeline.protocols import Engine, Flip, Transport
from pipeline.run import Model
from pipeline.weights.origin import Origin

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo" / "model"
SHAPE: dict[str, Any] = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "rope_theta": 100_000.0,
}
SEQUENCES, PROMPT_TOKENS, TOKENS, SEED = 32, 16, 224, 5
PLAIN_STEPS = 8
TRANSFER_BAR, STEP_BAR = 0.1, 1.0
ENGINE_OPTIONS = {"hf": {"slots": SEQUENCES}, "vllm": {"slots": SEQUENCES}}
PATIENCE_SECONDS = 120.0


def main() -> int:
    """Both dtypes; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(ENGINE_OPTIONS), default="hf")
    parser.add_argument("--rounds", type=int, default=20, help="versions each way, by dtype")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    found = {name: measured(options.engine, name, options.rounds) for name in options.dtypes}
    bars = {
        claim: holds
        for name, figures in found.items()
        for claim, holds in barred(name, figures).items()
    }
    for claim, holds in bars.items():
        word = ("held" if holds else "NOT HELD") if options.engine == "hf" else "reported"
        print(f"{word}: {claim}")
    held = options.engine != "hf" or all(bars.values())
    print(json.dumps({"engine": options.engine, **found, "held": held, "load_before": load}))
    return 0 if held else 1


def barred(name: str, figures: dict[str, float]) -> dict[str, bool]:
    """Each claim about one dtype, and whether it holds."""
    over_transfer = figures["pause_over_full_transfer"]
    median, at_95 = figures["pause_over_decode_step"], figures["pause_p95_over_decode_step"]
    return {
        f"{name}: pause_over_full_transfer {over_transfer:.3f} <= {TRANSFER_BAR}": over_transfer
        <= TRANSFER_BAR,
        f"{name}: pause_over_decode_step {median:.3f}, p95 {at_95:.3f} <= {STEP_BAR}": max(
            median, at_95
        )
        <= STEP_BAR,
    }


# What is measured.


class Round(NamedTuple):
    """Seconds without a token, each way, and what the staging took."""

    across: float
    flip: Flip
    paused: float


class Decoding:
    """An engine that always has its sequences; gaps between two tokens by what else goes on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.gaps: defaultdict[str, list[float]] = defaultdict(list)
        self.spent: defaultdict[str, list[float]] = defaultdict(list)
        self.rows: defaultdict[str, int] = defaultdict(int)
        self.prompts = prompts()
        self._last = self._spent = 0.0

    def step(self, meanwhile: str) -> float:
        """One pass; the gap before its tokens, or 0 where that says nothing."""
        if (missing := SEQUENCES - self.engine.load.running - self.engine.load.waiting) > 0:
            for _ in range(missing):
                self.engine.add(next(self.prompts))
        self.engine.step()
        times, spent, self._spent = self.engine.last_step, self._spent, thread_time()
        gap = times.ended - self._last if self._last and not times.prefill and times.rows else 0.0
        if times.rows:
            self._last = times.ended
        if gap:
            self.gaps[meanwhile].append(gap)
            self.spent[meanwhile].append(self._spent - spent)
            self.rows[meanwhile] += times.rows
        return gap

    def interrupt(self) -> None:
        """The next gap is none between two steps."""
        self._last = 0.0

    def rate(self, meanwhile: str) -> float:
        """Tokens a second."""
        spent = sum(self.gaps[meanwhile])
        return self.rows[meanwhile] / spent if spent else float("nan")


def prompts() -> Iterator[Work]:
    """Groups of one, of one length."""
    rng, number = random.Random(SEED), 0
    while True:
        ids = array("i", [rng.randrange(3, SHAPE["vocab_size"]) for _ in range(PROMPT_TOKENS)])
        sampling = Sampling(max_tokens=TOKENS)
        prompt = Prompt(
            group=f"g{number}", seq=number, ids=ids.tobytes(), members=1, sampling=sampling
        )
        yield Work(prompt=prompt, todo=(0,))
        number += 1


def measured(kind: str, dtype: str, rounds: int) -> dict[str, float]:
    """All figures of one dtype."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as place:
        folder = model_folder(Path(place) / "model", dtype)
        origin = Origin({"use": "shm", "folder": place}, "weights")
        transport = origin.transport()
        engine: Engine = plugins.make(
            ENGINES,
            {"use": kind, **ENGINE_OPTIONS[kind]},
            Model(path=str(folder), dtype=dtype),  # type: ignore[arg-type]
            at="inference.engine",
            boot="bench:1",
            swap="keep",
            origin=origin,
        )
        versions = announced(transport, dtype)
        adopt(engine, next(versions), transport)
        decoding = Decoding(engine)
        for _ in range(2 * PLAIN_STEPS):
            decoding.step("warming up")
        taken = []
        for number in range(rounds):
            taken.append(one_round(decoding, versions, transport))
            print(f"{dtype} {number + 1}/{rounds}: {said(taken[-1])}", flush=True)
        engine.close()
    return figures(decoding, taken)


def said(taken: Round) -> str:
    """One round in words."""
    staged, paused = taken.flip.staging.seconds, taken.paused
    return f"staged in {staged:.2f} s, {taken.across:.3f} s across; paused {paused:.2f} s"


def one_round(decoding: Decoding, versions: Iterator[Manifest], transport: Transport) -> Round:
    """A version each way."""
    engine = decoding.engine
    for _ in range(PLAIN_STEPS):
        decoding.step("plain")
    engine.stage(next(versions), transport)
    while (flip := engine.flip()) is None:
        check(engine)
        decoding.step("staging")
    proof = threading.Thread(target=engine.fingerprint)
    proof.start()
    while not (across := decoding.step("across")):  # a prefill, or nothing came
        pass
    while proof.is_alive():
        decoding.step("proving")
    for _ in range(PLAIN_STEPS):
        decoding.step("plain")
    paused = adopt(engine, next(versions), transport)
    decoding.interrupt()
    return Round(across, flip, paused)


def adopt(engine: Engine, manifest: Manifest, transport: Transport) -> float:
    """All the way while nothing is decoded; its seconds."""
    if type(engine).__name__ != "HfEngine":  # it decodes by itself
        engine.park()
    started = perf_counter()
    engine.stage(manifest, transport)
    while engine.flip() is None:
        check(engine)
        threading.Event().wait(0.001)
        assert perf_counter() - started < PATIENCE_SECONDS, "the version does not come"
    return perf_counter() - started


def check(engine: Engine) -> None:
    """No version may fail here."""
    if error := engine.staging_error():
        raise RuntimeError(error)


def figures(decoding: Decoding, rounds: Sequence[Round]) -> dict[str, float]:
    """For the last line. Seconds, bytes, tokens a second, and ratios."""
    step = statistics.median(decoding.gaps["plain"])
    pauses = sorted(each.across - step for each in rounds)
    chance = sorted(gap - step for gap in sample(decoding.gaps["plain"], len(pauses)))
    paused = sorted(each.paused for each in rounds)
    staged = [each.flip.staging for each in rounds]
    plain = decoding.rate("plain")
    found = {
        "bytes": staged[-1].num_bytes,
        "staging_seconds": statistics.median(cost.seconds for cost in staged),
        "verify_seconds": statistics.median(cost.verify_seconds for cost in staged),
        "flip_seconds": statistics.median(each.flip.pause_seconds for each in rounds),
        "decode_step_seconds": step,
        "pause_p50_seconds": statistics.median(pauses),
        "pause_p95_seconds": at_95(pauses),
        "pause_p95_seconds_without_a_flip": at_95(chance),
        "full_transfer_p50_seconds": statistics.median(paused),
        "full_transfer_p95_seconds": at_95(paused),
        "pause_over_full_transfer": statistics.median(pauses) / statistics.median(paused),
        "pause_over_decode_step": statistics.median(pauses) / step,
        "pause_p95_over_decode_step": at_95(pauses) / step,
        "tokens_per_second": plain,
        "tokens_per_second_staging": decoding.rate("staging"),
        "tokens_per_second_proving": decoding.rate("proving"),
        "staging_over_plain": decoding.rate("staging") / plain,
        "proving_over_plain": decoding.rate("proving") / plain,
        "versions": len(rounds),
    }
    found |= by_thread_time(decoding)
    return {name: round(value, 5) for name, value in found.items() if isfinite(value)}


def by_thread_time(decoding: Decoding) -> dict[str, float]:
    """The same by what the engine's thread spent on the processor, which others cannot stretch."""
    spent = {name: statistics.median(each) for name, each in decoding.spent.items()}
    plain = spent["plain"]
    found = {
        f"{name}_over_plain_by_thread_time": plain / spent[name]
        for name in ("staging", "proving")
        if spent.get(name)
    }
    across = (spent["across"] - plain) / plain if plain else float("nan")
    return found | {"pause_over_decode_step_by_thread_time": across}


def sample(gaps: Sequence[float], count: int) -> list[float]:
    """As many as there are flips."""
    return random.Random(0).sample(list(gaps), min(count, len(gaps)))


def at_95(ordered: Sequence[float]) -> float:
    """The 95th percentile of ascending numbers."""
    return ordered[max(0, round(0.95 * len(ordered)) - 1)]


# What is served.


def model_folder(folder: Path, dtype: str) -> Path:
    """A model that any engine can load; its tokenizer only names an end token."""
    made(SEED, dtype).save_pretrained(folder)
    for path in DEMO.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def made(seed: int, dtype: str) -> Any:
    """A model from the shape alone."""
    torch.manual_seed(seed)
    make: Any = LlamaForCausalLM
    return make(LlamaConfig(**SHAPE, eos_token_id=1)).to(DTYPES[dtype])


def announced(transport: Transport, dtype: str) -> Iterator[Manifest]:
    """Version after version: two that lie there already, by turns."""
    lying = [sent(transport, number, dtype) for number in range(2)]
    for version, manifest in enumerate(cycle(lying)):
        yield replace(manifest, version=version, step=version)


def sent(transport: Transport, number: int, dtype: str) -> Manifest:
    """One of the two."""
    tensors = named_parameters(made(SEED + 1 + number, dtype))
    entries = describe_all(tensors)
    fingerprint = fingerprint_of(entries)
    location = transport.send(number, tensors, epoch=1, fingerprint=fingerprint)
    return Manifest(
        version=number,
        step=number,
        epoch=1,
        fingerprint=fingerprint,
        location=location,
        tensors=entries,
    )


if __name__ == "__main__":
    sys.exit(main())

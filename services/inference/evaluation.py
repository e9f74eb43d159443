"""Held-out prompts, sampled and greedy, on kept versions: the same engine, without a stream.

Runs after training, so that it takes nothing from it; with `base`, before a run, to see whether
reinforcement learning has something to sharpen.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.messages import Completion, Manifest, Prompt, Sampling, Work
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import (
    DATASETS,
    ENGINES,
    SCORERS,
    TRANSPORTS,
    Answer,
    Dataset,
    Engine,
    Example,
    Scorer,
    Transport,
    Verdict,
)
from pipeline.run import Model, Run


class Kept(Struct, frozen=True, kw_only=True):
    """A version that training kept: a Hugging Face folder, its step, and when it was made."""

    version: int
    step: int
    seconds: float
    path: str


class Point(Struct, frozen=True, kw_only=True):
    """Held-out outcome of one version: means, and the sampled one's standard error.

    `pass_at_k` is the share of prompts that any of `members` samples got right; `zero_signal` the
    share whose samples all had the same outcome, so that they would teach nothing.
    """

    version: int
    step: int
    seconds: float
    sampled: float
    sampled_error: float
    greedy: float
    pass_at_k: float
    zero_signal: float
    prompts: int
    members: int

    def sentence(self) -> str:
        """In one line."""
        return (
            f"version {self.version}: "
            f"held-out sampled {self.sampled:.3f} ± {self.sampled_error:.3f}, "
            f"greedy {self.greedy:.3f}, pass@{self.members} {self.pass_at_k:.3f}, "
            f"groups without signal {self.zero_signal:.2f} ({self.prompts} prompts)"
        )


def evaluate(run: Run, *, base: bool = False) -> None:
    """Grades every kept version of `runs/NAME`, or the base model; prints a line for each.

    Writes `evaluation.json` into the run's folder. Raises ConfigError where nothing is to grade.
    """
    if base:
        print(grade_base(run).sentence())
        return
    folder, points = Path("runs") / run.name, []
    for point in side_by_side(run, kept_versions(folder)):
        points.append(msgspec.to_builtins(point))
        print(point.sentence(), flush=True)
    (folder / "evaluation.json").write_text(json.dumps({"points": points}, indent=1) + "\n")


def grade_base(run: Run) -> Point:
    """The model before training, with as many samples of a prompt as a group has members."""
    base = Kept(version=0, step=0, seconds=0.0, path=run.model.path)
    return Grader(run, members=run.groups.members).point(base)


def side_by_side(run: Run, kept: Sequence[Kept]) -> Iterator[Point]:
    """The points in order, graded by as many processes as there are cores, one thread each."""
    workers = min(len(os.sched_getaffinity(0)), len(kept))
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers, before they load torch
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(grade_one, run), kept)


def grade_one(run: Run, kept: Kept) -> Point:
    """One version, in a process of its own."""
    return Grader(run).point(kept)


def kept_versions(folder: Path) -> list[Kept]:
    """What training kept, oldest first; raises ConfigError where it kept nothing."""
    try:
        lines = (folder / "weights" / "kept.jsonl").read_text().splitlines()
    except FileNotFoundError:
        remedy = "train first, or give --base for the model before training"
        raise ConfigError(str(folder), None, rule="has no kept weights", remedy=remedy) from None
    return [msgspec.json.decode(line, type=Kept) for line in lines]


class Grader:
    """The held-out examples, the scorers, and an engine for each version in turn."""

    def __init__(self, run: Run, *, members: int | None = None) -> None:
        """`members` samples of each prompt, by default those of [evaluation].

        Raises ConfigError without an [evaluation] section, and for parts that cannot be had.
        """
        if run.evaluation is None:
            remedy = "add an [evaluation] section with data"
            raise ConfigError("evaluation", None, rule="is not set", remedy=remedy)
        self.run, self.members = run, members or run.evaluation.members
        dataset: Dataset = plugins.make(DATASETS, run.evaluation.data, at="evaluation.data")
        self.examples = [dataset[index] for index in range(len(dataset))]
        self.scorers: list[Scorer] = [
            plugins.build(SCORERS, spec, at=f"scoring.scorers[{i}]")
            for i, spec in enumerate(run.scoring.scorers)
        ]
        self.tokenizer = Tokenizer(run.model.path)

    def point(self, kept: Kept) -> Point:
        """Grades one version."""
        engine = self._engine(kept)
        sampled = self._outcomes(engine, "sampled", self.members, self.run.sampling.temperature)
        greedy = self._outcomes(engine, "greedy", 1, 0.0)
        engine.close()
        flat = [outcome for group in sampled for outcome in group]
        return Point(
            version=kept.version,
            step=kept.step,
            seconds=kept.seconds,
            sampled=statistics.fmean(flat),
            sampled_error=statistics.pstdev(flat) / len(flat) ** 0.5,
            greedy=statistics.fmean(group[0] for group in greedy),
            pass_at_k=statistics.fmean(float(max(group) > 0) for group in sampled),
            zero_signal=statistics.fmean(float(min(group) == max(group)) for group in sampled),
            prompts=len(self.examples),
            members=self.members,
        )

    def _engine(self, kept: Kept) -> Engine:
        model = Model(path=kept.path, dtype=self.run.model.dtype)
        spec, swap = self.run.inference.engine, self.run.inference.swap
        engine: Engine = plugins.make(
            ENGINES, spec, model, at="inference.engine", boot="evaluation", swap=swap
        )
        live = Manifest(
            version=kept.version,
            step=kept.step,
            epoch=0,
            location="",
            fingerprint=engine.fingerprint(),
        )
        transport: Transport = plugins.make(
            TRANSPORTS, self.run.weights, at="weights", run=f"{self.run.name}-evaluation"
        )
        engine.stage(live, transport)
        assert engine.flip() is not None, "the engine's own weights are adopted at once"
        return engine

    def _outcomes(
        self, engine: Engine, name: str, members: int, temperature: float
    ) -> list[list[float]]:
        """Outcomes by prompt, one a member."""
        sampling = Sampling(temperature=temperature, max_tokens=self.run.sampling.max_tokens)
        work = self._work(name, members, sampling)
        out: list[list[float]] = [[] for _ in self.examples]
        for completion in generate(engine, work):
            index = int(completion.group.rpartition("-")[2])
            out[index].append(self._outcome(self.examples[index], completion))
        return out

    def _work(self, name: str, members: int, sampling: Sampling) -> list[Work]:
        return [
            Work(
                prompt=Prompt(
                    group=f"{name}-{index}",
                    seq=index,
                    ids=self.tokenizer.encode(example.prompt),
                    members=members,
                    sampling=sampling,
                    seed=self.run.seed,
                    lane="eval",
                ),
                todo=tuple(range(members)),
            )
            for index, example in enumerate(self.examples)
        ]

    def _outcome(self, example: Example, completion: Completion) -> float:
        """The first scorer's outcome; a scorer that fails here fails the evaluation, loudly."""
        answer = Answer(
            text=self.tokenizer.decode(completion.ids),
            prompt=example.prompt,
            reference=example.reference,
            finish=completion.finish or "length",
            task=example.task,
        )
        verdict = self.scorers[0](answer)
        if inspect.isawaitable(verdict):
            verdict = asyncio.run(_wait(verdict))
        if isinstance(verdict, Verdict):
            return verdict.reward if verdict.outcome is None else verdict.outcome
        return float(verdict)


def generate(engine: Engine, work: Sequence[Work]) -> Iterator[Completion]:
    """Every member of the work, as it finishes."""
    todo = list(reversed(work))
    while todo or engine.busy:
        for _ in range(min(engine.room(), len(todo))):
            engine.add(todo.pop())
        yield from engine.step()


async def _wait(verdict: object) -> float | Verdict:
    return await verdict  # type: ignore[no-any-return, misc]

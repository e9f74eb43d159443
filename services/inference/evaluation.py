"""`sluice evaluate`: held-out prompts on every version that a run kept, side by side.

Runs after training, on what was not graded while the run went on; with `base`, before a run, to see
whether reinforcement learning has something to sharpen. How a version is graded is in `grading`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from pipeline import grades
from pipeline.errors import ConfigError, SluiceError
from pipeline.grades import KeptVersion, Point
from pipeline.machine import cores
from pipeline.run import Run
from services.inference.grading import Grader


def evaluate(run: Run, *, base: bool = False) -> None:
    """Grades every kept version of `runs/NAME`, or the base model; prints a line for each.

    But not those that were graded on the same prompts while the run went on. Writes
    `evaluation.json` into the run's folder. Raises ConfigError where nothing is to grade.
    """
    if base:
        print(grade_base(run).sentence())
        return
    folder = run.folder
    kept = known_versions(folder)
    digest = Grader(run).digest
    graded = [p for p in grades.read(folder).points if p.boots and p.data == digest]
    known = {point.version for point in graded}
    for point in graded:
        print(point.sentence(), flush=True)
    for point in side_by_side(run, [one for one in kept if one.version not in known]):
        graded.append(point)
        print(point.sentence(), flush=True)
    grades.write(folder, graded)


def grade_base(run: Run) -> Point:
    """The model before training, with as many samples of a prompt as a group has members."""
    base = KeptVersion(version=0, step=0, seconds=0.0, path=run.model.path)
    return Grader(run, members=run.groups.members).point(base)


def side_by_side(run: Run, kept: Sequence[KeptVersion]) -> Iterator[Point]:
    """The points in order, graded by as many processes as there are cores, one thread each; by one
    at a time where an engine takes a whole device.

    Raises ConfigError for parts that cannot be had, SluiceError where a process dies.
    """
    if not kept:
        return
    Grader(run)  # a mistake is told once, before any process is started
    workers = 1 if grades.is_alone(run) else min(cores(), len(kept))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the workers, before they load torch
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(grade_one, run), kept)
        except BrokenProcessPool as exc:
            raise SluiceError("a grading process died: out of memory, or its scorer") from exc


def grade_one(run: Run, kept: KeptVersion) -> Point:
    """One version, in a process of its own."""
    return Grader(run).point(kept)


def known_versions(folder: Path) -> list[KeptVersion]:
    """What training kept, oldest first; raises ConfigError where it kept nothing."""
    kept = grades.kept_versions(folder)
    if not kept:
        remedy = "train first, or give --base for the model before training"
        raise ConfigError(str(folder), None, rule="has no kept weights", remedy=remedy)
    return kept

"""A whole run for the end-to-end tests: a folder with data, a RUN.toml, and real processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from pipeline.bus.bus import Bus
from pipeline.config import dump
from pipeline.run import Run

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "demo" / "model"
FAKE: dict[str, dict[str, Any]] = {
    "inference": {"engine": {"use": "fake", "vocabulary": 22, "max_length": 256}},
    "scoring": {"scorers": ["benchmarks.rewards:by_hash"]},
}
"""Of a run whose subject is not what a model says: an engine that is there in half a second, since
it imports no torch, and rewards that differ within each group."""


def write_run(folder: Path, *, prompts: int = 40, **sections: dict[str, Any]) -> Path:
    """RUN.toml over the demo's base model and sorting prompts; sections are overridden.

    Every second prompt has an answer of 84 tokens, the others of 18.
    """
    rng = random.Random(0)
    lines = []
    for number in range(prompts):
        count, repeats = ((4, 2), (8, 5))[number % 2]
        pairs = [label + rng.choice("0123456789") for label in rng.sample("abcdefgh", count)]
        answer = ",".join(["".join(sorted(pairs))] * repeats)
        lines.append(json.dumps({"prompt": f"{''.join(pairs)}={repeats}", "reference": answer}))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    run: dict[str, Any] = {
        "name": "run",
        "steps": 4,
        "model": {"path": str(MODEL)},
        "data": {"use": "jsonl", "path": "prompts.jsonl"},
        "groups": {"members": 4, "per_step": 2},
        "sampling": {"max_tokens": 100},
        "training": {"learning_rate": 1e-4, "pack_tokens": 512},
    }
    for name, keys in sections.items():
        before = run if name == "top" else run.setdefault(name, {})
        before.update(keys)
    path = folder / "run.toml"
    path.write_text(dump(msgspec.convert(run, Run)))
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`sluice` with these arguments, in the folder, one thread a process."""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pid_of(bus: Bus, service: str) -> int | None:
    """The process of a service that is alive and at work."""
    for seen in bus.snapshot().beats:
        if seen.beat.service == service and seen.alive and seen.beat.waiting_for != "start":
            return seen.beat.pid
    return None


def read_report(folder: Path, name: str = "run") -> dict[str, Any]:
    """The run's report.json."""
    report: dict[str, Any] = json.loads((folder / "runs" / name / "report.json").read_text())
    return report

"""The demo, measured: does it learn for every seed, and stay flat where it must?

    python benchmarks/demo.py --seeds 0 1 2     # the run of the README, for three seeds
    python benchmarks/demo.py --controls        # learning rate 0, and rewards shuffled in a group

Each run is a `sluice up` of its own; the last line printed is one JSON object of all figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.training.advantages import grpo

ROOT = Path(__file__).resolve().parent.parent
SHOWN = (
    "reward_first",
    "reward_last",
    "greedy_first",
    "greedy_last",
    "steps",
    "seconds",
    "members_trained",
    "members_refused",
    "share_of_members_spanning_versions",
    "lag_mean",
    "lag_max",
    "balanced",
    "tokens_per_second",
    "idle_share",
    "busy_share",
    "other_share",
    "swap_pause_seconds",
    "random_pause_seconds",
    "decode_step_seconds",
)
# 256 held-out prompts, so 2,048 samples: a standard error of .01.
CONTROL = ("steps=40", "evaluation.members=8", "evaluation.every=40")
CONTROLS = {
    "learning_rate_0": ("training.learning_rate=0.0",),
    "shuffled_rewards": ('objective.advantage="benchmarks.demo:shuffled"',),
}


def shuffled(rewards: Tensor) -> Tensor:
    """grpo on rewards that were dealt out anew within their group: nothing to learn from."""
    return grpo(rewards[torch.randperm(len(rewards))])


def main() -> None:
    parser = argparse.ArgumentParser(description="The demo for several seeds, and its controls.")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="of the runs")
    parser.add_argument("--controls", action="store_true", help="also the two that must stay flat")
    parser.add_argument("--set", action="append", default=[], help="overrides for every run")
    options = parser.parse_args()
    subprocess.run([sys.executable, "examples/demo/prepare.py"], cwd=ROOT, check=True)
    runs = {f"seed_{seed}": (f"seed={seed}",) for seed in options.seeds}
    if options.controls:
        runs |= {name: (*CONTROL, *overrides) for name, overrides in CONTROLS.items()}
    figures = {name: run(name, [*options.set, *overrides]) for name, overrides in runs.items()}
    for name, report in figures.items():
        print(f"{name}: {report['reward_first']:.3f} -> {report['reward_last']:.3f}")
    print(json.dumps(figures))


def run(name: str, overrides: list[str]) -> dict[str, Any]:
    """One run from start to report; its figures."""
    command = [sys.executable, "-m", "services.cli", "up", "examples/demo.toml"]
    for override in (f"name=bench-{name}", *overrides):
        command += ["--set", override]
    before = set((ROOT / "runs").glob("*"))
    subprocess.run(command, cwd=ROOT, check=True)
    (folder,) = set((ROOT / "runs").glob("*")) - before
    report = json.loads((folder / "report.json").read_text())
    return {key: report[key] for key in SHOWN}


if __name__ == "__main__":
    main()

"""The demo, measured: does it learn for every seed, and stay flat where it must?

    python benchmarks/demo.py --seeds 0 1 2     # the run of the README, for three seeds
    python benchmarks/demo.py --controls        # learning rate 0, and rewards shuffled in a group

Each run is a `sluice up` of its own. For each bar a line says whether it held; the last line
is one JSON object of all figures. Exit 1 where a bar did not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.training.advantages import grpo

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("inference", "training")
SPANS = "share_of_members_spanning_versions"
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

# A start under .3 leaves something to learn.
START, END, STEPS, SECONDS, SPANNING = 0.3, 0.9, 150, 180.0, 0.15
SHARES_OFF, FLAT, NOISE_GAIN = 0.02, 0.05, 0.1

Figures = dict[str, Any]


class Bar(NamedTuple):
    """What must be true of a run, in words and with the value that it has, and whether it is."""

    claim: str
    held: bool


def seed_bars(figures: Figures) -> list[Bar]:
    """Of a run that must learn."""
    f = figures
    sums = {s: sum(f[f"{a}_share"][s] or 0.0 for a in ("busy", "idle", "other")) for s in SERVICES}
    return [
        Bar(f"starts at {f['reward_first']:.3f} < {START}", f["reward_first"] < START),
        Bar(f"ends at {f['reward_last']:.3f} >= {END}", f["reward_last"] >= END),
        Bar(f"{f['steps']} steps <= {STEPS}", f["steps"] <= STEPS),
        Bar(f"{f['seconds']:.1f} s <= {SECONDS:.0f}", f["seconds"] <= SECONDS),
        Bar(f"{f[SPANS]:.3f} of members span versions >= {SPANNING}", f[SPANS] >= SPANNING),
        Bar(f"lag {f['lag_max']:.0f} <= {f['lag_limit']}", f["lag_max"] <= f["lag_limit"]),
        Bar("the ledger balances", f["balanced"]),
        *(
            Bar(f"{service}'s shares add up to {whole:.3f}", abs(whole - 1) <= SHARES_OFF)
            for service, whole in sums.items()
        ),
    ]


def control_bars(name: str, figures: Figures) -> list[Bar]:
    """Of a run that must not learn."""
    first, last = figures["reward_first"], figures["reward_last"]
    if name == "learning_rate_0":
        held = abs(last - first) <= FLAT
        return [Bar(f"from {first:.3f} to {last:.3f}: within {FLAT}", held)]
    return [
        Bar(
            f"from {first:.3f} to {last:.3f}: below {first + NOISE_GAIN:.3f}",
            last < first + NOISE_GAIN,
        )
    ]


def bars(name: str, figures: Figures) -> list[Bar]:
    """Of any run of this benchmark, by its name; a figure that is missing holds none."""
    figures = {key: math.nan if value is None else value for key, value in figures.items()}
    return control_bars(name, figures) if name in CONTROLS else seed_bars(figures)


def shuffled(rewards: Tensor) -> Tensor:
    """grpo on rewards that were dealt out anew within their group: nothing to learn from."""
    return grpo(rewards[torch.randperm(len(rewards))])


def main() -> int:
    """All runs in turn; the exit code."""
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
    judged = {name: bars(name, run_figures) for name, run_figures in figures.items()}
    for name, found in judged.items():
        for bar in found:
            print(f"{name}: {'held' if bar.held else 'NOT HELD'}: {bar.claim}")
    print(json.dumps(figures))
    return 0 if all(bar.held for found in judged.values() for bar in found) else 1


def run(name: str, overrides: list[str]) -> Figures:
    """One run from start to report; its figures."""
    command = [sys.executable, "-m", "services.cli", "up", "examples/demo.toml"]
    fresh = f"bench-{name}-{int(time.time())}"  # or one that was cut short would be gone on with
    for override in (f"name={fresh}", *overrides):
        command += ["--set", override]
    subprocess.run(command, cwd=ROOT, check=True)
    report = json.loads((ROOT / "runs" / fresh / "report.json").read_text())
    return {key: report[key] for key in SHOWN} | {"lag_limit": report["config"]["lag"]["max"]}


if __name__ == "__main__":
    sys.exit(main())

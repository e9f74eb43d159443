"""What asynchrony is worth: the demo at several lags, and beside TRL's GRPOTrainer.

    OMP_NUM_THREADS=1 python -m benchmarks.async                  # about a quarter of an hour
    python -m benchmarks.async --peer-python VENV/bin/python      # and the peer

Each lag is a `sluice up` of its own on one server; lag 0 is the synchronous run. The peer needs an
environment of its own (torch 2.13.0, transformers 5.19.0, trl 1.16.0, accelerate, datasets);
without one its section is skipped, and a line says so. It has the same model, prompts, reward, loss
and optimizer, both cores, and the fastest of several micro-batches; see `peers/trl_grpo.py`.

- `trained_tokens_per_second`: tokens inside the loss over seconds, from the end of the fifth step
  to that of the last, so that neither side's start counts; `..._whole_run` with it.
- `seconds_to_target`: on the training's own clock, until held-out sampled reward is .9, by linear
  interpolation between graded versions. Weights of both sides are graded by the same grader.
- `ideal`: (g + t) / max(g, t) of the synchronous run: g the seconds that its engine's loop was in
  forward passes, t those that its trainer was in optimizer steps, each over the steps taken.
- `async_over_sync`, `async_over_ideal`: trained tokens a second at lag 2, the demo's, over those of
  the synchronous run, and that over the ideal. The bar is for that lag; `..._by_lag` has all.
- `tokens_per_second_over_trl`: the tokens that training has settled at lag 2 over the peer's.
  Half of the groups have no signal: the peer steps on them with an advantage of 0, ours drops them
  before the step, and the share grows with the progress of a run, so only the sum compares.
  `..._with_signal` leaves them out on both sides; `..._strict` counts the peer's and not ours.
- `target_over_trl`: the peer's seconds to the target over ours; a peer that never gets there counts
  as if it had at its last step.

For each bar a line says whether it held; the last line is one JSON object. Exit 1 where one did not
hold. Needs a machine that does nothing else: the peer's two threads wait for each other.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.grades import KeptVersion, Point
from pipeline.machine import cores
from pipeline.run import Run
from pipeline.watch import Snapshot, by_label, processes
from services.inference.evaluation import side_by_side
from services.training.backends.torch import TorchBackend
from services.up.embedded import Embedded
from services.up.spawn import Spawner
from services.view.journal import read_steps
from services.view.machine import machine
from services.view.report import Report

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo.toml"
PEER = ROOT / "benchmarks" / "peers" / "trl_grpo.py"
PEER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
LAGS, SYNCHRONOUS, COMPARED = (0, 1, 2, 4), 0, 2
PARTS, TUNING_STEPS = (1, 2, 4), 6
TARGET, WARM_STEPS = 0.9, 5
IDEAL_BAR, TOKENS_BAR, TARGET_BAR = 0.85, 2.0, 1.3
UNDISTURBED = 0.8
"""Of the rate of a few steps, the least that the peer's whole run must have to be compared with."""

Figures = dict[str, Any]


class StepEnd(NamedTuple):
    """The end of a step on the training's own clock, and the tokens of that step."""

    seconds: float
    tokens: float


class Graded(NamedTuple):
    """Held-out sampled reward of the weights that were made at `seconds`."""

    seconds: float
    reward: float


def main() -> int:
    """The peer, then all lags; the exit code."""
    options = parse()
    os.environ["OMP_NUM_THREADS"] = "1"  # of every child of ours; before they load torch
    load_before = os.getloadavg()[0]
    os.chdir(ROOT)  # the demo's paths and runs/ are relative
    subprocess.run([sys.executable, "examples/demo/prepare.py"], check=True)
    run = load(DEMO, overrides(options, COMPARED))
    peer = measure_peer(run, options) if options.peer_python else None
    with server() as url:
        lags = {lag: measure_lag(lag, url, options) for lag in options.lags}
    found = {
        "lags": lags,
        "trl": peer,
        **asynchrony(lags),
        **(against(lags.get(COMPARED), peer) if peer else {}),
    }
    if peer is None:
        print("trl: skipped, no --peer-python was given")
    held = judge(found)
    about = {"machine": machine(), "load_before": load_before, "seed": options.seed}
    print(json.dumps(found | {"bars_held": held} | about))
    return 0 if held and all(held.values()) else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The demo at several lags, and beside TRL.")
    parser.add_argument(
        "--peer-python", type=os.path.abspath, help="of an environment with TRL; else skipped"
    )
    parser.add_argument("--lags", type=int, nargs="*", default=LAGS, help="values of lag.max")
    parser.add_argument("--steps", type=int, default=90, help="of each of our runs")
    parser.add_argument("--peer-steps", type=int, default=100, help="of the peer's run")
    parser.add_argument("--every", type=int, default=10, help="steps between graded versions")
    parser.add_argument("--members", type=int, default=8, help="samples of a held-out prompt")
    parser.add_argument("--seed", type=int, default=0, help="of every run")
    parser.add_argument("--set", action="append", default=[], help="overrides of the demo's keys")
    options = parser.parse_args()
    if options.peer_python and not os.access(options.peer_python, os.X_OK):
        parser.error(f"--peer-python: there is no interpreter at {options.peer_python}")
    return options


def overrides(options: argparse.Namespace, lag: int) -> list[str]:
    """Of the demo's keys, for one lag."""
    return [
        f"name=async-{int(time.time())}-lag{lag}",
        f"steps={options.steps}",
        f"seed={options.seed}",
        f"lag.max={lag}",
        f"evaluation.every={options.every}",
        f"evaluation.members={options.members}",
        *options.set,
    ]


# Ours.


@contextlib.contextmanager
def server() -> Iterator[str]:
    """One as `sluice up` starts for itself, which outlives a run, so that its beats can be read."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, Spawner() as spawner:
        embedded = Embedded(Path(folder), spawner, restarts=0)
        try:
            yield embedded.start()
        finally:
            embedded.stop()


def measure_lag(lag: int, url: str, options: argparse.Namespace) -> Figures:
    """One run from start to report; its figures."""
    chosen = overrides(options, lag)
    command = [sys.executable, "-m", "services.cli", "up", str(DEMO), "--redis", url]
    subprocess.run([*command, *itertools.chain(*(("--set", key) for key in chosen))], check=True)
    run = load(DEMO, chosen)
    with contextlib.closing(Bus.connect(url, run.name)) as bus:
        snapshot = bus.snapshot()
    report = msgspec.json.decode((run.folder / "report.json").read_bytes(), type=Report)
    lines = read_steps(run.folder / "metrics.jsonl")
    ends = [StepEnd(line.seconds, line.tokens) for line in lines]
    points = [Graded(p.seconds, p.sampled) for p in report.evaluation if p.sampled is not None]
    zero_signal = report.ledger.get("zero_signal")
    return {
        **course(ends, points),
        "generated_tokens_per_second": report.tokens_per_second["generated"],
        "zero_signal_tokens": zero_signal.tokens if zero_signal else 0,
        "engine_busy_seconds_per_step": busy_seconds(snapshot, "inference") / len(lines),
        "trainer_busy_seconds_per_step": busy_seconds(snapshot, "training") / len(lines),
        "busy_share": report.busy_share,
        "idle_share": report.idle_share,
        "lag_mean": report.lag_mean,
        "balanced": report.balanced,
    }


def busy_seconds(snapshot: Snapshot, service: str) -> float:
    """What its process has counted by its last beat."""
    return by_label(processes(snapshot.beats, service), "loop_seconds")["busy"]


# Both sides.


def course(ends: Sequence[StepEnd], points: Sequence[Graded]) -> Figures:
    """What is measured alike of our runs and of the peer's."""
    tokens = sum(end.tokens for end in ends)
    return {
        "steps": len(ends),
        "seconds": ends[-1].seconds,
        "seconds_per_step": steady(ends)[0],
        "trained_tokens_per_second": steady(ends)[1],
        "trained_tokens_per_second_whole_run": tokens / ends[-1].seconds,
        "trained_tokens": tokens,
        "seconds_to_target": reached(points),
        "rewards": [[round(p.seconds, 2), round(p.reward, 4)] for p in points],
    }


def steady(ends: Sequence[StepEnd]) -> tuple[float, float]:
    """Seconds a step and tokens a second after the first steps; of a short run, of its later half.

    By then a window of groups is alive, as there will be at the end: its stock counts for nothing.
    """
    warm = min(WARM_STEPS, len(ends) // 2)
    seconds = ends[-1].seconds - (ends[warm - 1].seconds if warm else 0.0)
    rest = ends[warm:]
    return seconds / len(rest), sum(end.tokens for end in rest) / seconds


def reached(points: Sequence[Graded], target: float = TARGET) -> float | None:
    """Seconds until the target, between the first point at or above it and the one before it."""
    before = None
    for now in points:
        if now.reward >= target:
            if before is None:
                return now.seconds
            share = (target - before.reward) / (now.reward - before.reward)
            return before.seconds + share * (now.seconds - before.seconds)
        before = now
    return None


# The peer.


def measure_peer(run: Run, options: argparse.Namespace) -> Figures:
    """The fastest way over a few steps, then the whole run that way, then its grading."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        settings = peer_settings(run, folder)
        tried = tune(options.peer_python, settings)
        rows, policy = max(tried, key=lambda way: tried[way])
        whole = {"micro_batch": rows, "steps": options.peer_steps, "every": options.every}
        result = run_peer(options.peer_python, settings | whole, policy)
        kept = [msgspec.convert(line, KeptVersion) for line in result["kept"]]
        points = [Graded(point.seconds, point.sampled) for point in graded(run, kept)]
    found = course(ends_of(result, "tokens"), points)
    return {
        **found,
        "rate_over_tried": found["trained_tokens_per_second"] / tried[rows, policy],
        "signal_tokens_per_second": steady(ends_of(result, "signal_tokens"))[1],
        "micro_batch": rows,
        "wait_policy": policy,
        "tokens_per_second_when_tried": {f"{r} {p}": rate for (r, p), rate in tried.items()},
        "loss": "cispo",
        "threads": result["threads"],
        "versions": result["versions"],
    }


def tune(python: str, settings: Figures) -> dict[tuple[int, str], float]:
    """Tokens a second by micro-batch and by how threads wait, which alone can cost half."""
    tried: dict[tuple[int, str], float] = {}

    def attempt(rows: int, policy: str) -> None:
        short = settings | {"micro_batch": rows, "steps": TUNING_STEPS, "every": 0}
        ends = ends_of(run_peer(python, short, policy), "tokens")
        seconds = ends[-1].seconds - ends[0].seconds
        tried[rows, policy] = sum(end.tokens for end in ends[1:]) / seconds

    for parts in PARTS:
        attempt(settings["members"] * settings["per_step"] // parts, "PASSIVE")
    best, _ = max(tried, key=lambda way: tried[way])
    attempt(best, "ACTIVE")
    return tried


def graded(run: Run, kept: Sequence[KeptVersion]) -> Iterator[Point]:
    """Each version's point, by the grader of `sluice evaluate`."""
    for point in side_by_side(run, kept):
        print(f"trl: {point.sentence()}", flush=True)
        yield point


def peer_settings(run: Run, folder: str) -> Figures:
    """What the two sides have in common; the optimizer's are our back end's defaults."""
    assert isinstance(run.data, dict) and isinstance(run.objective.loss, dict)
    own = inspect.signature(TorchBackend).parameters
    return {
        "folder": folder,
        "model": str(ROOT / run.model.path),
        "prompts": str(ROOT / run.data["path"]),
        "seed": run.seed,
        "members": run.groups.members,
        "per_step": run.groups.per_step,
        "max_tokens": run.sampling.max_tokens,
        "temperature": run.sampling.temperature,
        "high": run.objective.loss["high"],
        "learning_rate": run.training.learning_rate,
        "warmup_steps": run.training.warmup_steps,
        **{name: own[name].default for name in ("betas", "weight_decay", "clip_norm")},
    }


def run_peer(python: str, settings: Figures, policy: str) -> Figures:
    """One training in the peer's environment, on all cores; what it wrote."""
    folder = Path(settings["folder"])
    (folder / "settings.json").write_text(json.dumps(settings))
    threads = {"OMP_NUM_THREADS": str(cores()), "OMP_WAIT_POLICY": policy}
    how = f"{settings['micro_batch']} rows at a time, {policy.lower()} waits"
    print(f"trl: {settings['steps']} steps, {how}", flush=True)
    done = subprocess.run(
        [python, PEER, folder / "settings.json"],
        env=os.environ | PEER_ENVIRONMENT | threads,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\ntrl: ended with {done.returncode}")
    result: Figures = json.loads((folder / "result.json").read_text())
    return result


def ends_of(result: Figures, count: str) -> list[StepEnd]:
    """The peer's steps, with all tokens or only those that have an advantage."""
    return [StepEnd(line["seconds"], line[count]) for line in result["lines"]]


# What follows from them.


def asynchrony(lags: dict[int, Figures]) -> Figures:
    """What the lags gain over the synchronous run, and over the best that two loops could."""
    if SYNCHRONOUS not in lags:
        return {}
    sync = lags[SYNCHRONOUS]
    g, t = sync["engine_busy_seconds_per_step"], sync["trainer_busy_seconds_per_step"]
    ideal, base = (g + t) / max(g, t), sync["trained_tokens_per_second"]
    over_sync = {
        lag: f["trained_tokens_per_second"] / base for lag, f in lags.items() if lag != SYNCHRONOUS
    }
    over_ideal = {lag: ratio / ideal for lag, ratio in over_sync.items()}
    return {
        "g_seconds": g,
        "t_seconds": t,
        "ideal": ideal,
        "async_over_sync": over_sync.get(COMPARED),
        "async_over_sync_by_lag": over_sync,
        "async_over_ideal": over_ideal.get(COMPARED),
        "async_over_ideal_by_lag": over_ideal,
    }


def against(ours: Figures | None, peer: Figures) -> Figures:
    """Ours at lag 2 against the peer's."""
    if ours is None:
        return {}
    rate, theirs = ours["trained_tokens_per_second"], peer["trained_tokens_per_second"]
    settled = (ours["trained_tokens"] + ours["zero_signal_tokens"]) / ours["seconds"]
    mine, its = ours["seconds_to_target"], peer["seconds_to_target"]
    return {
        "tokens_per_second_over_trl": settled / theirs,
        "tokens_per_second_over_trl_with_signal": rate / peer["signal_tokens_per_second"],
        "tokens_per_second_over_trl_strict": rate / theirs,
        "target_over_trl": (its or peer["seconds"]) / mine if mine else None,
        "target_over_trl_is_at_least": its is None,
    }


def judge(found: Figures) -> dict[str, bool]:
    """Each bar that was measured, with a line for it; what is missing holds none.

    Nor does anything hold against a peer that something else on the machine has slowed down.
    """
    bars, peer = {"async_over_ideal": IDEAL_BAR}, found["trl"]
    is_fair = peer is None or peer["rate_over_tried"] >= UNDISTURBED
    if peer:
        bars |= {"tokens_per_second_over_trl": TOKENS_BAR, "target_over_trl": TARGET_BAR}
    held = {}
    for name, bar in bars.items():
        value = found.get(name)
        held[name] = value is not None and value >= bar and (is_fair or not name.endswith("_trl"))
        shown = "not measured" if value is None else f"{value:.3f}"
        print(f"{'held' if held[name] else 'NOT HELD'}: {name} {shown} >= {bar}")
    if not is_fair:
        print(
            f"trl ran at {peer['rate_over_tried']:.2f} of what it did when tried: no quiet machine"
        )
    if peer and peer["seconds_to_target"] is None:
        print(f"trl never reached {TARGET}: its whole time counts, the ratio is at least that")
    return held


if __name__ == "__main__":
    sys.exit(main())

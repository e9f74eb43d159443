"""Twenty steps of the demo with vLLM as the engine, by `sluice up`. Torch-free."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.runs import DEMO_MODEL, prompts, written
from benchmarks.gpu_check.setting import Failed, Finding, Setting, told

SHOWN = ("steps", "flips", "seconds", "tokens_per_second", "lag_max", "engine_k3", "restarts")
STEPS, NAME = 20, "gpu-check-train"
REMEDY = "read the run's folder beside this log: report.html, logs/inference-1.log"


def check(setting: Setting) -> None:
    """The run's own report says what became of it."""
    path = written(
        setting,
        NAME,
        model=DEMO_MODEL,
        dtype="float32",
        data=prompts(setting, 4000),
        steps=STEPS,
        per_step=8,
        max_tokens=128,
    )
    command = [sys.executable, "-m", "services.cli", "up", str(path)]
    ended = subprocess.run(command, cwd=setting.folder, stdout=sys.stderr)
    folder = Path(setting.folder) / "runs" / NAME
    if not (folder / "report.json").exists():
        raise Failed(f"`sluice up` ended with exit {ended.returncode} and no report")
    for finding in _findings(json.loads((folder / "report.json").read_text()), ended.returncode):
        told(finding)


def _findings(report: dict[str, Any], code: int) -> list[Finding]:
    first, last = report["training_reward_first"], report["training_reward_last"]
    limit, step = report["lag_limit"], report["decode_step_seconds"]
    pause = report["swap_pause_seconds"]
    paused = f"a pause of {1e3 * pause:.1f} ms each" if pause else "no pause measured"
    return [
        Finding(
            claim=f"{report['steps']} steps and {report['flips']} flips in"
            f" {report['seconds']:.0f} s, {paused}; reward {first:.2f} to {last:.2f};"
            f" {report['tokens_per_second']['generated']:.0f} tokens/s; exit {code}",
            held=report["steps"] == STEPS and code == 0,
            remedy=REMEDY,
            figures={"reward": [first, last], "pause_seconds": pause, "decode_step_seconds": step}
            | {key: report[key] for key in SHOWN},
        ),
        Finding(
            claim=f"every token has one fate, and none was older than the bound"
            f" (lag {report['lag_max']:.0f} of {limit})",
            held=bool(report["balanced"]) and report["lag_max"] <= limit,
            remedy=REMEDY,
        ),
    ]

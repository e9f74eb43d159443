"""Runs of the whole stream, as RUN.toml has them: the demo's task, whose files lie in the
repository. Torch-free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.setting import Setting

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "examples" / "demo" / "model"
SLOTS = 64

_TEXT = """
name  = "{name}"
steps = {steps}

[model]
path  = "{model}"
dtype = "{dtype}"

[data]
use  = "jsonl"
path = "{prompts}"

[groups]
members  = 8
per_step = {per_step}

[sampling]
max_tokens = {max_tokens}

[inference.engine]
use   = "vllm"
slots = {slots}
args  = {{ {args} }}

[scoring]
scorers = ["exact"]

[objective]
loss = {{ use = "cispo", high = 5.0 }}

[training]
learning_rate = 2e-4
pack_tokens   = 384
"""


def prompts(setting: Setting, number: int) -> Path:
    """So many of the demo's prompts, in a file."""
    folder = Path(setting.folder)
    if not (folder / "prompts.jsonl").exists():
        prepare = [ROOT / "examples" / "demo" / "prepare.py", "--folder", folder]
        subprocess.run([sys.executable, *prepare], check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)[:number]
    some = folder / f"prompts-{number}.jsonl"
    some.write_text("".join(lines))
    return some


def written(
    setting: Setting,
    name: str,
    *,
    model: Path,
    dtype: str,
    data: Path,
    steps: int,
    per_step: int,
    max_tokens: int,
) -> Path:
    """The RUN.toml of a run whose engine is vLLM, with a part of the GPU."""
    args = "" if setting.rehearses else "gpu_memory_utilization = 0.5"
    path = Path(setting.folder) / f"{name}.toml"
    path.write_text(
        _TEXT.format(
            name=name,
            steps=steps,
            model=model,
            dtype=dtype,
            prompts=data,
            per_step=per_step,
            max_tokens=max_tokens,
            slots=SLOTS,
            args=args,
        )
    )
    return path

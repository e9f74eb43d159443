"""What a GPU owner runs first: does everything that a machine without a GPU cannot show hold here?

    python -m benchmarks.gpu_check                  # one GPU, eight minutes at most
    python -m benchmarks.gpu_check --device cpu     # a rehearsal: everything but CUDA
    python -m benchmarks.gpu_check --only swap      # one part

In an environment with vLLM. Models are made on the spot; nothing is downloaded. Each part is a
process of its own with a limit on its time; one that fails does not stop the next. A line says what
held, what did not and what to do, and what was skipped; the last line is one JSON object. Exit 1
where something did not hold.

- `swap`: weights that emit one token per version are swapped under load; every token is checked by
  content against the version that it is said to be of, under `keep` and `recompute`.
- `pause`: of a flip, by each way that weights can come in, beside one decode step.
- `parity`: log-probs as vLLM samples them against a plain forward of transformers, in both dtypes.
- `rate`: tokens a second of the inference service in its stream, against vLLM alone.
- `train`: twenty steps of the demo, with vLLM as the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.gpu_check import REMEDY
from benchmarks.gpu_check.setting import DEVICES, FINDINGS, Finding, Setting, found_in
from pipeline.weights.folders import default_root

LIMIT_SECONDS, ROOM_BYTES = 480.0, 4 << 30
PARTS = {
    "swap": ("tokens by content", 150.0),
    "pause": ("a flip against a decode step", 150.0),
    "parity": ("log-probs against transformers", 110.0),
    "rate": ("the service against vLLM alone", 130.0),
    "train": ("twenty steps of the demo", 150.0),
}
"""What each shows, and its own limit in seconds; together they have LIMIT_SECONDS."""
ROOT = Path(__file__).resolve().parents[2]
MARKS = {True: "held", False: "NOT HELD", None: "skipped"}


class Outcome(NamedTuple):
    """What became of a part; `error` where it did not come to its end."""

    findings: list[Finding]
    seconds: float
    error: str = ""

    @property
    def held(self) -> bool:
        """Whether nothing was found wanting."""
        return not self.error and all(f.held is not False for f in self.findings)


def main() -> int:
    """Every part in turn; the exit code."""
    parser = argparse.ArgumentParser(description="Check on a GPU what needs one.")
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--folder", type=Path, help="where logs go; by default a new one")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies all limits")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gpu-check-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the part ends with this
    machine = _machine(options.device)
    _head(machine, folder)
    found = {}
    ends = time.monotonic() + LIMIT_SECONDS * options.patience
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=_roomy()) as shared:
        setting = Setting(device=options.device, folder=str(folder), shared=shared)
        for part in options.only:
            limit = min(PARTS[part][1] * options.patience, ends - time.monotonic())
            found[part] = _run(part, setting, limit)
            _tell(part, found[part], folder)
    return _foot(found, machine, seconds=sum(o.seconds for o in found.values()))


def _roomy() -> Path:
    """Shared memory, or a disk where a container has little of it."""
    root = default_root()
    enough = shutil.disk_usage(root).free > ROOM_BYTES
    return root if enough else Path(tempfile.gettempdir())


def _run(part: str, setting: Setting, limit: float) -> Outcome:
    """The part in a process of its own, and of a session, so that all of its children end."""
    print(f"\n{part}: {PARTS[part][0]} …", flush=True)
    started = time.monotonic()
    if limit < 10:
        return Outcome([], 0.0, "no time was left for it: run it alone, with --only")
    findings = Path(setting.folder) / f"{part}.findings"
    findings.unlink(missing_ok=True)
    with (Path(setting.folder) / f"{part}.log").open("wb") as log:
        command = [sys.executable, "-m", "benchmarks.gpu_check.part", part]
        process = subprocess.Popen(
            [*command, msgspec.json.encode(setting).decode()],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=os.environ | {FINDINGS: str(findings)},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit)
            error = f"it ended with exit {code}" if code else ""
        except subprocess.TimeoutExpired:
            error = f"it did not end within {limit:.0f} s"
        finally:
            _end(process)
    return Outcome(found_in(findings), time.monotonic() - started, error)


def _end(process: subprocess.Popen[bytes]) -> None:
    """vLLM's own processes are of the same session, and may outlive the part."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _machine(device: str) -> dict[str, Any]:
    """What this is; raises SystemExit with one line where it cannot be checked here."""
    try:
        import torch
        import vllm
        from vllm.platforms import current_platform as seen
    except ImportError as exc:
        raise SystemExit(f"gpu-check needs {exc.name}: {REMEDY}") from exc
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "gpu-check: torch sees no GPU here; check the driver with nvidia-smi, or rehearse with"
            " --device cpu"
        )
    cards = range(torch.cuda.device_count())  # asked of the driver: no part of a GPU is taken here
    memory = [seen.get_device_total_memory(i) / 2**30 for i in cards]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "device": device,
        "gpus": [f"{seen.get_device_name(i)}, {memory[i]:.0f} GiB" for i in cards],
        "cores": len(os.sched_getaffinity(0)),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
    }


# What is printed.


def _head(machine: dict[str, Any], folder: Path) -> None:
    gpus = " + ".join(machine["gpus"]) or f"{machine['cores']} cores and no GPU: a rehearsal"
    print(f"Sluice {machine['commit']} on {gpus}")
    print(f"vLLM {machine['vllm']}, torch {machine['torch']}; logs in {folder}")


def _tell(part: str, outcome: Outcome, folder: Path) -> None:
    for finding in outcome.findings:
        print(f"  {MARKS[finding.held]:>8}  {finding.claim}")
        if finding.held is False and finding.remedy:
            print(f"            → {finding.remedy}")
    if outcome.error:
        log = folder / f"{part}.log"
        print(f"  {MARKS[False]:>8}  {outcome.error}")
        for line in _last_lines(log):
            print(f"            | {line}")
        print(f"            → read {log}; file an issue with it and with the last line below")
    print(f"            {outcome.seconds:.0f} s", flush=True)


def _last_lines(log: Path, number: int = 3) -> Sequence[str]:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return [line[:160] for line in lines[-number:]]


def _foot(found: dict[str, Outcome], machine: dict[str, Any], *, seconds: float) -> int:
    held = all(outcome.held for outcome in found.values())
    counts = {mark: 0 for mark in MARKS.values()}
    for outcome in found.values():
        for finding in outcome.findings:
            counts[MARKS[finding.held]] += 1
        counts[MARKS[False]] += bool(outcome.error)
    told = ", ".join(f"{number} {mark}" for mark, number in counts.items() if number)
    print(f"\n{'all is well' if held else 'not all is well'}: {told}, in {seconds:.0f} s")
    parts = {
        part: {
            "held": outcome.held,
            "seconds": round(outcome.seconds, 1),
            "error": outcome.error,
            "findings": [msgspec.to_builtins(finding) for finding in outcome.findings],
        }
        for part, outcome in found.items()
    }
    print(json.dumps({"held": held, **machine, "seconds": round(seconds, 1), "parts": parts}))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

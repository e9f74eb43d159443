"""How long a flip holds up sequences in flight, by each way that weights come in. † torch, vllm"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.gpu_check.models import drawn, saved
from benchmarks.gpu_check.serving import RUN, Load, shared, size_of, started
from benchmarks.gpu_check.setting import Failed, Finding, Setting, told
from pipeline.messages import Manifest
from pipeline.run import Spec
from pipeline.weights.origin import Origin

SEQUENCES, LENGTH, FLIPS, STEPS = 32, 960, 8, 60
REMEDY = "read the log for what the trainer's side said, and file an issue"
DTYPE = "bfloat16"
Way = tuple[str, Spec, str]
"""Its name, what RUN.toml would say, and which GPU the trainer is on, if any."""


def check(setting: Setting) -> None:
    """Each way in turn; a way that fails does not stop the next."""
    model = drawn(setting, dtype=torch.bfloat16)
    num_bytes = size_of(model.named_parameters())
    path = saved(model, Path(setting.folder) / "half-a-billion")
    ways: list[Way] = [("staged (shm)", shared(setting), "0")]
    ways += _direct(setting)
    for way in ways:
        try:
            _measure(setting, path, way, num_bytes)
        except Exception as exc:  # told, and the next one is measured
            told(Finding(claim=f"{way[0]}: {exc}", held=False, remedy=REMEDY))


def _direct(setting: Setting) -> Iterator[Way]:
    if setting.rehearses:
        why = "needs CUDA"
        told(Finding(claim=f"direct (ipc): {why}", held=None))
        told(Finding(claim=f"direct (nccl): {why}", held=None))
        return
    yield "direct (ipc)", "ipc", "0"
    if torch.cuda.device_count() > 1:
        yield "direct (nccl)", "nccl", "1"
    else:
        told(Finding(claim="direct (nccl): needs two GPUs", held=None))


def _measure(setting: Setting, path: str, way: Way, num_bytes: int) -> None:
    name, spec, gpu = way
    engine = started(setting, path, spec, dtype=DTYPE, slots=SEQUENCES)
    try:
        with publisher(spec, path, gpu) as publish:
            figures = _pauses(Load(engine, members=SEQUENCES, tokens=LENGTH), publish, spec)
    finally:
        engine.close()
    pause, step = figures["pause_seconds_p50"], figures["decode_step_seconds"]
    told(
        Finding(
            claim=f"{name}: a pause of {1e3 * pause:.1f} ms for {num_bytes / 1e6:.0f} MB,"
            f" {pause / step:.1f} decode steps of {SEQUENCES} sequences ({1e3 * step:.1f} ms);"
            f" longest {1e3 * figures['pause_seconds_max']:.1f} ms",
            held=True,
            figures={"way": name, "bytes": num_bytes, **figures},
        )
    )


def _pauses(load: Load, publish: Any, spec: Spec) -> dict[str, float]:
    """Of FLIPS flips after one that warms up, and of the steps between them."""
    transport = Origin(spec, RUN).transport()
    load.take(publish(), transport)
    steps, pauses = [], []
    for _ in range(FLIPS):
        load.draw(2 * SEQUENCES)
        began, tokens = time.perf_counter(), load.tokens
        load.draw(STEPS * SEQUENCES)
        steps.append((time.perf_counter() - began) * SEQUENCES / (load.tokens - tokens))
        pauses.append(load.take(publish(), transport).pause_seconds)
    return {
        "pause_seconds_p50": statistics.median(pauses),
        "pause_seconds_max": max(pauses),
        "decode_step_seconds": statistics.median(steps),
    }


@contextmanager
def publisher(spec: Spec, path: str, gpu: str) -> Iterator[Any]:
    """A call that sends one more version, from a process that is a trainer's."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = seen[int(gpu)] if len(seen) > int(gpu) and seen[0] else gpu
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_check.publish", json.dumps(spec), path, DTYPE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible},
        text=True,
    )
    assert process.stdin and process.stdout
    into, out = process.stdin, process.stdout

    def publish() -> Manifest:
        into.write("publish\n")
        into.flush()
        line = out.readline()
        if not line:
            raise Failed("the trainer's side ended; the log says why")
        return msgspec.msgpack.decode(bytes.fromhex(line.strip()), type=Manifest)

    try:
        yield publish
    finally:
        into.close()
        process.wait(timeout=20)

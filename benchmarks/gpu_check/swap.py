"""Swaps under load, exact by content, while vLLM schedules the next step before it has this one's
tokens. † torch, vllm"""

from __future__ import annotations

from array import array
from pathlib import Path

import torch

from benchmarks.gpu_check.models import planted, saved
from benchmarks.gpu_check.serving import RUN, Load, manifest_of, shared, started
from benchmarks.gpu_check.setting import Finding, Setting, told
from pipeline.messages import Completion
from pipeline.model.fingerprint import named_parameters
from pipeline.run import Swap
from pipeline.weights.origin import Origin

MEMBERS, TOKENS, FLIPS, BETWEEN = 16, 600, 24, 300
REMEDY = (
    "do not train with this pair of vLLM and GPU: spans would name the wrong weights; turn vLLM's"
    " async scheduling off (inference.engine.args.async_scheduling = false), check again, and"
    " file an issue"
)


def check(setting: Setting) -> None:
    """Under both policies; `keep` with vLLM's own defaults, CUDA graphs and all."""
    dtype = torch.float32 if setting.rehearses else torch.bfloat16
    path = saved(planted(0, dtype), Path(setting.folder) / "planted")
    policies: tuple[Swap, ...] = ("keep", "recompute")
    for swap in policies:
        _check(setting, path, dtype, swap)


def _check(setting: Setting, path: str, dtype: torch.dtype, swap: Swap) -> None:
    weights = shared(setting)
    name = str(dtype).removeprefix("torch.")
    engine = started(
        setting, path, weights, dtype=name, swap=swap, slots=MEMBERS, eager=swap != "keep"
    )
    transport = Origin(weights, RUN).transport()
    load = Load(engine, members=MEMBERS, tokens=TOKENS)
    for version in range(1, FLIPS + 2):
        named = named_parameters(planted(version, dtype))
        load.take(manifest_of(transport, version, named), transport)
        load.draw(BETWEEN)
    load.drain()
    _tell(load, swap)
    engine.close()


def _tell(load: Load, swap: Swap) -> None:
    done = load.done
    ahead = bool(load.engine._host.llm.vllm_config.scheduler_config.async_scheduling)
    counts = [wrong_of(completion) for completion in done]
    wrong, total = sum(counts), sum(c.tokens for c in done)
    spans = sum(len(c.spans) for c in done)
    whole = len(done) == load.begun and total == load.begun * TOKENS
    told(
        Finding(
            claim=f"{swap}: {total} tokens of {len(done)} sequences in {spans} spans over {FLIPS}"
            f" flips, {wrong} under a wrong version"
            f" (async scheduling {'on' if ahead else 'off'})",
            held=wrong == 0 and whole and spans > 2 * len(done),
            remedy=REMEDY if wrong else "sequences were lost or cut: file an issue with the log",
            figures={
                "swap": swap,
                "flips": FLIPS,
                "tokens": total,
                "spans": spans,
                "wrong": wrong,
                "sequences": len(done),
                "async_scheduling": ahead,
            },
        )
    )


def wrong_of(completion: Completion) -> int:
    """Tokens that are not the one that their version emits."""
    named = [span.version for span in completion.spans for _ in range(span.tokens)]
    return sum(a != b for a, b in zip(array("i", completion.ids), named, strict=True))

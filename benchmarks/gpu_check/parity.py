"""Log-probs as vLLM samples them, against a plain forward of transformers. † torch, vllm"""

from __future__ import annotations

from array import array
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.gpu_check.models import drawn, saved
from benchmarks.gpu_check.serving import Load, begin, shared, started
from benchmarks.gpu_check.setting import Finding, Setting, told
from pipeline.messages import Completion, Manifest
from pipeline.model.load import load_model
from services.inference.canary import LIMITS
from services.inference.engines.vllm.engine import VllmEngine

MEMBERS, TOKENS, PROMPT = 16, 64, [3, 5, 7]
REMEDY = (
    "an engine this far off is quarantined at its first flip. In float32: is TF32 on (NVIDIA_TF32_"
    "OVERRIDE, VLLM_*)? In bfloat16: try another inference.engine.args.attention_backend. Else set"
    " inference.canary_gap knowingly, and keep a correction on"
)


def check(setting: Setting) -> None:
    """In both dtypes."""
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        path = saved(drawn(setting, dtype=dtype), Path(setting.folder) / f"drawn-{name}")
        weights = shared(setting)
        engine = started(setting, path, weights, dtype=name, slots=MEMBERS, eager=True)
        done = _sampled(engine)
        engine.close()
        _tell(setting, path, name, done)


def _sampled(engine: VllmEngine) -> list[Completion]:
    own = Manifest(version=0, step=0, epoch=1, fingerprint=engine.fingerprint(), location="")
    load = Load(engine)
    load.take(own, transport=None)  # type: ignore[arg-type]  # these weights are live already
    begin(engine, "parity", members=MEMBERS, tokens=TOKENS)
    load.drain()
    return load.done


def _tell(setting: Setting, path: str, dtype: str, done: list[Completion]) -> None:
    model = load_model(path, dtype=dtype).to(setting.device).eval()  # type: ignore[arg-type]
    gaps = torch.cat([_gap(model, completion) for completion in done])
    largest, mean, limit = float(gaps.max()), float(gaps.mean()), LIMITS[dtype]
    told(
        Finding(
            claim=f"{dtype}: {len(gaps)} log-probs differ from a plain forward's by {largest:.2g}"
            f" nats at most, {mean:.2g} on average (limit {limit:g})",
            held=largest <= limit,
            remedy=REMEDY,
            figures={"dtype": dtype, "largest": largest, "mean": mean, "tokens": len(gaps)},
        )
    )


@torch.no_grad()
def _gap(model: PreTrainedModel, completion: Completion) -> torch.Tensor:
    """Of each token, [T]."""
    ids = torch.tensor([[*PROMPT, *array("i", completion.ids)]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(PROMPT) - 1 : -1]
    logp = torch.log_softmax(logits.float(), -1)
    own = logp.gather(-1, ids[0, len(PROMPT) :, None])[:, 0].cpu()
    return (own - torch.tensor(array("f", completion.logprobs))).abs()

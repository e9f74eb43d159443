"""What an engine's process counts of members, flips and forward passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted_run import Plant, Running, wait_until

from pipeline.messages import Completion, Finish, Span
from pipeline.metrics import Metrics
from pipeline.protocols import Device, Flip, StagingCost, StepTimes
from services.inference.metrics import Numbers


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("inference")


@pytest.fixture
def numbers(metrics: Metrics) -> Numbers:
    return Numbers(metrics)


def member(group: str, tokens: int, finish: Finish) -> Completion:
    spans = (Span(0, tokens, "engine:1"),)
    raw = bytes(4 * tokens)
    return Completion(group=group, member=0, ids=raw, logprobs=raw, spans=spans, finish=finish)


def test_lengths_and_cut_off_members_are_counted_where_the_bus_took_them(
    metrics: Metrics, numbers: Numbers
) -> None:
    numbers.delivered(member("a", 20, "length"), "engine:1", "ok")
    numbers.delivered(member("b", 40, "stop"), "engine:1", "ok")
    numbers.delivered(member("c", 500, "length"), "engine:1", "closed")
    totals, served = metrics.totals(), metrics.exposition().decode()
    assert (totals["members"], totals["truncated_members"], totals["tokens"]) == (2, 1, 60)
    assert totals["lost_tokens"] == 500
    assert "sluice_inference_completion_tokens_count 2.0" in served
    assert 'sluice_inference_completion_tokens_bucket{le="32.0"} 1.0' in served
    assert "sluice_inference_completion_tokens_sum 60.0" in served


def test_a_swap_is_counted_with_all_that_it_took(metrics: Metrics, numbers: Numbers) -> None:
    numbers.flipped(Flip(1, 0.25, StagingCost(seconds=2.0, verify_seconds=0.5, num_bytes=1000)))
    numbers.flipped(Flip(2, 0.25))
    totals = metrics.totals()
    assert (totals["flips"], totals["flip_seconds"]) == (2, 0.5)
    assert (totals["stage_seconds"], totals["verify_seconds"]) == (2.0, 0.5)
    assert totals["stage_bytes"] == 1000


def test_forward_passes_are_paid_for_by_the_devices_that_they_keep(
    metrics: Metrics, numbers: Numbers
) -> None:
    times = StepTimes(ended=1.0, seconds=0.5, prefill=False, rows=8)
    numbers.stepped(times, Device("gpu", 4), flipped=False)
    numbers.stepped(times, Device("core", 1), flipped=False)
    totals = metrics.totals()
    assert totals['device_seconds{device="gpu"}'] == 2.0
    assert totals['device_seconds{device="core"}'] == 0.5


def test_an_engine_is_looked_at_and_its_idle_time_has_a_cause(
    plant: Plant, start: Callable[..., Running]
) -> None:
    running = start(plant, steps=3)
    wait_until(lambda: running.metrics.gauges()["version"] == 0)
    wait_until(lambda: running.total('idle_seconds{cause="prompts"}') > 0)
    plant.admit()
    running.flown(6)
    gauges = running.metrics.gauges()
    assert (gauges["running_sequences"], gauges["waiting_sequences"]) == (2, 0)
    assert 0 < gauges["kv_ratio"] < 1
    idle = running.total('loop_seconds{activity="idle"}')
    causes = {n: v for n, v in running.metrics.totals().items() if n.startswith("idle_seconds")}
    assert sum(causes.values()) == pytest.approx(idle)

"""Which version is offered, and how often; against a real desk of versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines_for_tests import Paced
from msgspec.structs import replace
from planted_run import NoTransport, Plant, wait_until

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError, WeightsError
from pipeline.messages import Beat, Manifest
from pipeline.weights.subscriber import MOST_TRIES, Subscriber


@pytest.fixture
def weights(plant: Plant) -> Iterator[Subscriber]:
    bus = Bus.connect(plant.url, plant.run)
    bus.beat(Beat(service="inference", instance="engine", boot="engine:1"))
    weights = Subscriber(bus.versions, Paced(boot="engine:1"), retry_seconds=0.001)
    weights.start()
    yield weights
    weights.close()
    bus.close()


def offered(weights: Subscriber) -> Manifest:
    found: list[Manifest] = []
    wait_until(lambda: found or found.extend(m for m in [weights.poll()] if m) or found)
    return found[0]


def test_a_version_is_offered_once_and_again_where_its_staging_failed(weights: Subscriber) -> None:
    assert offered(weights).version == 0
    assert weights.poll() is None
    weights.failed("a checksum is off")
    assert offered(weights).version == 0
    assert weights.poll() is None


def test_what_failed_is_offered_again_as_it_was_announced_since(
    weights: Subscriber, plant: Plant
) -> None:
    """A server that was put back may have lost it: then it is sent anew, and lies elsewhere."""
    first = offered(weights)
    renewed = replace(first, location="elsewhere")
    plant.bus.versions.announce(renewed, min_version=0)
    weights.failed("it is not there")
    assert offered(weights) == renewed


def test_where_no_version_ever_can_be_staged_the_input_is_at_fault(weights: Subscriber) -> None:
    reason = rf"weights: a checksum is off \({MOST_TRIES} tries\); give this machine the trainer's"
    with pytest.raises(ConfigError, match=reason):
        fail_for_good(weights)


def test_a_version_that_never_can_be_staged_ends_the_process_with_the_reason(
    weights: Subscriber, plant: Plant
) -> None:
    weights._engine.stage(offered(weights), NoTransport())
    assert weights._engine.flip()
    plant.announce(1)
    reason = rf"a checksum is off \({MOST_TRIES} tries\); version 0 ran"
    with pytest.raises(WeightsError, match=reason):
        fail_for_good(weights)


def fail_for_good(weights: Subscriber) -> None:
    for _ in range(MOST_TRIES):
        offered(weights)
        weights.failed("a checksum is off")


def test_a_newer_version_starts_afresh(weights: Subscriber, plant: Plant) -> None:
    for version in range(3):
        if version:
            plant.announce(version)
        wait_until(lambda version=version: weights._newest and weights._newest.version == version)
        for _ in range(MOST_TRIES - 1):
            assert offered(weights).version == version
            weights.failed("a checksum is off")

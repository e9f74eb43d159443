"""Which version is offered, and how often; against a real desk of versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engines_for_tests import Paced
from planted_run import Plant, wait_until

from pipeline.bus.bus import Bus
from pipeline.errors import WeightsError
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


def test_a_version_that_never_can_be_staged_ends_the_process_with_the_reason(
    weights: Subscriber,
) -> None:
    with pytest.raises(WeightsError, match=rf"a checksum is off \({MOST_TRIES} tries\)"):
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

"""A planted run, engines that end with the test, and the signals as they were."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from planted_run import Plant, Running


@pytest.fixture
def plant_run(server_url: str, run_name: str) -> Iterator[Callable[..., Plant]]:
    plants: list[Plant] = []

    def plant(**settings: int) -> Plant:
        plants.append(Plant(server_url, run_name, **settings))
        return plants[-1]

    yield plant
    for planted in plants:
        planted.bus.purge()
        planted.bus.close()


@pytest.fixture
def plant(plant_run: Callable[..., Plant]) -> Plant:
    return plant_run()


@pytest.fixture
def start(plant_run: Callable[..., Plant]) -> Iterator[Callable[..., Running]]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    running: list[Running] = []

    def start(plant: Plant, instance: str = "engine", **options: Any) -> Running:
        running.append(Running(plant, instance, **options))
        return running[-1]

    yield start
    for service in running:
        service.close()
    for number, handler in before.items():
        signal.signal(number, handler)

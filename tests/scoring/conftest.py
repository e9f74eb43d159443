"""A planted run, and scoring that serves it until the test is over."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from planting import Plant, Running

from pipeline.run import Scoring as ScoringKeys


@pytest.fixture
def plant(server_url: str, run_name: str) -> Iterator[Plant]:
    plant = Plant(server_url, run_name)
    yield plant
    plant.bus.close()


@pytest.fixture
def serving(plant: Plant) -> Callable[..., Any]:
    @contextmanager
    def serve(*scorers: Any, model: str | None = None, **keys: Any) -> Iterator[Running]:
        former = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
        running = Running(plant, ScoringKeys(scorers=list(scorers), **keys), model)
        running.life.start()
        running.thread.start()
        try:
            yield running
        finally:
            if running.thread.is_alive():
                running.stop()
            running.life.end()
            running.bus.close()
            for number, handler in former.items():
                signal.signal(number, handler)
        assert not running.errors, running.errors

    return serve

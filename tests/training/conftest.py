"""The stream of a run and its trainers, for modules that say in a fixture `run` which run it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from planted import Lead, Stream, Trainer

from pipeline.run import Run


@pytest.fixture
def stream(server_url: str, run: Run) -> Iterator[Stream]:
    stream = Stream(server_url, run)
    yield stream
    stream.bus.purge()
    stream.bus.close()


@pytest.fixture
def lead(server_url: str, run: Run) -> Iterator[Lead]:
    """Starts trainers of the run, one after another."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    trainers: list[Trainer] = []

    def start(**keys: Any) -> Trainer:
        trainers.append(Trainer(server_url, run, **keys))
        trainers[-1].start()
        return trainers[-1]

    yield start
    for trainer in trainers:
        if trainer.running:
            trainer.stop()
        trainer.bus.close()
    for number, handler in former.items():
        signal.signal(number, handler)

"""What a trainer serves at /metrics: its steps, and the run, which nobody else exports."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from planted import Stream, Trainer, made_run, wait_until

from pipeline.bus.keys import Keys
from pipeline.serve import EXIT_DONE

Begin = Callable[[], Trainer]


@pytest.fixture
def stream(server_url: str, run_name: str, tmp_path: Path) -> Iterator[Stream]:
    weights = {"use": "shm", "folder": str(tmp_path)}
    stream = Stream(server_url, made_run(run_name, steps=1, weights=weights))
    yield stream
    stream.bus.purge()
    stream.bus.close()


@pytest.fixture
def begin(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.chdir(tmp_path)
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    trainers: list[Trainer] = []

    def begun() -> Trainer:
        trainers.append(Trainer(stream.url, stream.run))
        return trainers[-1]

    yield begun
    for trainer in trainers:
        trainer.close()
    for number, handler in former.items():
        signal.signal(number, handler)


def value(trainer: Trainer, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", trainer.exposition().decode(), re.MULTILINE)
    assert found, series
    return float(found[1])


def test_the_run_is_there_with_the_first_scrape_and_moves_on_with_each_beat(
    stream: Stream, begin: Begin
) -> None:
    trainer = begin()
    assert value(trainer, "sluice_run_window_groups") == 4
    assert value(trainer, 'sluice_run_place_groups{place="groups"}') == 0
    trainer.start()
    stream.serve(0)
    stream.plant(1)
    wait_until(lambda: value(trainer, 'sluice_run_place_groups{place="groups"}') == 1, "look")
    stream.plant(1)
    assert trainer.join() == EXIT_DONE
    wait_until(lambda: value(trainer, 'sluice_run_fate_tokens_total{fate="trained"}') == 16, "end")
    assert value(trainer, "sluice_run_unbalanced_tokens") == 0
    assert value(trainer, "sluice_run_steps") == value(trainer, "sluice_training_steps_total") == 1
    assert value(trainer, 'sluice_training_lag_tokens_total{steps="0"}') == 16
    ess = value(trainer, "sluice_training_ess_ratio")
    assert 0 < value(trainer, 'sluice_training_ess_by_lag_ratio{steps="0"}') == ess
    assert math.isnan(value(trainer, 'sluice_training_ess_by_lag_ratio{steps="1"}'))
    assert not [name for name in trainer.totals() if "fate" in name], "no beat carries the ledger"


def test_what_was_given_up_before_it_began_is_there_with_the_first_scrape(
    stream: Stream, begin: Begin, server_url: str
) -> None:
    """Else it would seem to have happened now: an alert looks at what grew."""
    with redis.Redis.from_url(server_url) as client:
        client.xadd(Keys(stream.run.name).dead, {"reason": "planted"})
    assert value(begin(), "sluice_run_dead_letters_total") == 1

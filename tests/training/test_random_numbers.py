"""A loss of the user's may draw at random: what it draws follows from the run's seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import Lead, Stream, feed, made_run, wait_until

from pipeline.protocols import Tokens
from pipeline.run import Objective, Run
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE
from services.training.backends.rng import begin
from services.training.losses import reinforce
from services.training.replay import replay


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def noisy(tokens: Tokens) -> Any:
    """A user's loss that draws from every generator."""
    return reinforce(tokens) * sum(drawn())


@pytest.fixture
def run(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return made_run(
        run_name,
        steps=9,
        weights={"use": "shm", "folder": str(tmp_path)},
        training=Keys(learning_rate=1e-3, checkpoint_every=9),
        objective=Objective(loss=f"{__name__}:noisy"),
    )


def test_what_is_drawn_first_follows_from_the_seed_and_the_rank_alone() -> None:
    first = {}
    for seed, rank in [(0, 0), (0, 1), (-(2**63), 0), (0, 0)]:
        begin(seed, rank)
        numbers = drawn()
        assert first.setdefault((seed, rank), numbers) == numbers
        drawn()
    assert all(len({*column}) == 3 for column in zip(*first.values(), strict=True))


def test_a_loss_that_draws_is_replayed_bit_for_bit_from_the_first_weights(
    stream: Stream, lead: Lead, run: Run
) -> None:
    drawn()
    trainer = lead()
    wait_until(lambda: stream.bus.state().version >= 0, "version")
    feed(stream, 2)
    assert trainer.stop() == EXIT_DONE
    told: list[str] = []
    assert replay(run, say=told.append), told
    assert told[0].startswith("step 2: the same weights")

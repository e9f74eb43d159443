"""What a trainer writes down of gaming: every member once, whoever leads, trained or not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from planted import Lead, Stream, feed, made_run, wait_until

from pipeline.messages import Score
from pipeline.run import Run, Scoring
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE
from services.training.gaming import Gaming
from services.training.replay import replay

PLAIN = (Score(reward=0.0, shadow={"regex/1@aa": 0.5}), Score(reward=1.0, shadow={"regex/1@aa": 0}))
ALIKE = (Score(reward=1.0, shadow={"regex/2@bb": 1.0}), Score(reward=1.0))


@pytest.fixture
def run(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return made_run(
        run_name,
        steps=9,
        weights={"use": "shm", "folder": str(tmp_path)},
        training=Keys(learning_rate=1e-4, checkpoint_every=2),
        scoring=Scoring(scorers=["exact", {"use": "regex", "pattern": "a", "shadow": True}]),
    )


def lines_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(one) for one in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_every_member_that_was_scored_is_counted_once_by_whoever_leads(
    stream: Stream, lead: Lead, run: Run
) -> None:
    """Groups without signal, too, and one that the first trainer took and the second trained."""
    first = lead()
    wait_until(lambda: stream.bus.state().version >= 0, "version")
    stream.serve(0)
    stream.plant(3, *ALIKE)
    wait_until(lambda: "zero_signal" in stream.ledger(), "refusal")
    wait_until(lambda: not stream.bus.snapshot().places.alive, "free places")
    feed(stream, 2, *PLAIN)
    stream.plant(1, *PLAIN)
    wait_until(lambda: len(first.service.pool.oldest(9)) == 1, "group in hand")
    assert first.stop() == EXIT_DONE
    second = lead()
    wait_until(lambda: stream.bus.state().version == second.service.version, "version")
    stream.serve(second.service.version)
    stream.plant(1, *PLAIN)
    wait_until(lambda: stream.bus.state().step == 3, "step")
    wait_until(lambda: len(lines_of(run)) == 3, "line")
    assert second.stop() == EXIT_DONE
    lines = lines_of(run)
    assert sum(line["shadow"]["regex"]["members"] for line in lines) == 3 * 1 + 4 * 2 + 2 * 2
    assert [line["length_correlation"] for line in lines] == [None] * 3, "all are of one length"
    assert [line["repeated"]["attempts"] for line in lines] == [0.0] * 3
    shadows = [line["shadow"]["regex"]["shadow"] for line in lines]
    assert shadows == pytest.approx([(3 * 1.0 + 2 * 0.5) / 7, 0.25, 0.25])
    assert 'sluice_training_shadow_reward{scorer="regex"} 0.25' in second.exposition().decode()
    before = (run.folder / "metrics.jsonl").read_bytes()
    assert replay(run, say=lambda told: None)
    assert (run.folder / "metrics.jsonl").read_bytes() == before, "a replay counts nothing"


def test_a_trainer_that_goes_on_remembers_what_was_written_down(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    wait_until(lambda: stream.bus.state().version >= 0, "version")
    stream.serve(0)
    feed(stream, 1, *PLAIN)
    wait_until(lambda: len(lines_of(run)) == 1, "line")
    assert first.stop() == EXIT_DONE
    hacked = {"length_correlation": 0.75, "length_freedom": 20, "reward": None, "step": 2}
    with (run.folder / "metrics.jsonl").open("a") as file:
        for batch in range(2, 12):
            file.write(json.dumps(hacked | {"batch": batch}) + "\n")
    second = lead()
    own = Gaming()
    for line in lines_of(run):
        own.observe(line)
    assert second.service.gaming.signs() == own.signs()
    assert own.signs().length == pytest.approx(0.75) and math.isfinite(own.signs().length or 0)

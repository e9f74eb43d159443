"""Golden sets in a service: nothing is scored before they are known, and a change is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planting import Plant, Running, wait_until

from pipeline.config import dump
from pipeline.errors import ConfigError
from pipeline.run import Model, Run
from pipeline.run import Scoring as ScoringKeys

Serving = Callable[..., Any]
MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
OFTEN, MOODY = 0.001, "moods:moody"
"""Minutes between two rounds, and a scorer that says what a file says."""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.jsonl"
    lines = [{"id": id, "answer": "good", "completion": id, "expected": id == "good"}
             for id in ("good", "bad")]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def mood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the moody scorer reads before each verdict; each that it gave is a line beside it."""
    path = tmp_path / "mood"
    path.write_text("fair")
    path.with_suffix(".asked").touch()
    monkeypatch.setenv("MOOD", str(path))
    return path


def scorer(golden: Path, **keys: Any) -> dict[str, Any]:
    return {"use": MOODY, "golden": str(golden), "golden_minutes": OFTEN, **keys}


def numbers(running: Running) -> tuple[float, float]:
    """Changes so far, and how many verdicts differ now."""
    metrics = running.metrics
    return metrics.totals()["golden_changes"], metrics.gauges()["golden_differences"]


def set_mood(path: Path, mood: str) -> None:
    """Whole at once: it is read meanwhile."""
    path.with_suffix(".new").write_text(mood)
    path.with_suffix(".new").rename(path)


def test_a_set_that_is_known_lets_the_work_begin_and_0_asks_once(
    plant: Plant, serving: Serving, golden: Path, mood: Path
) -> None:
    plant.group(["good", "bad"])
    with serving(scorer(golden, golden_minutes=0)) as running:
        (group,) = plant.ready(1)
        assert running.life.trouble == ""
        assert numbers(running) == (0, 0)
    assert plant.rewards(group) == {0: 1.0, 1: 0.0}
    asked = mood.with_suffix(".asked").read_text().split()
    assert sorted(asked) == ["bad", "bad!", "good", "good!"], (
        "! is fresh: what is known is no answer"
    )


@pytest.mark.parametrize("use", [MOODY, "moods:Loop"])
def test_C050_a_scorer_that_is_wrong_takes_no_work(
    plant: Plant, golden: Path, mood: Path, use: str
) -> None:
    """As a checker of which an error makes everything unequal, in a worker and on the loop."""
    set_mood(mood, "never")
    plant.group(["good", "bad"])
    running = Running(plant, ScoringKeys(scorers=["exact", scorer(golden, use=use)]), None)
    assert running.life.trouble == "it starts"
    running.life.start()
    running.thread.start()
    running.thread.join(20)
    running.life.end()
    running.bus.close()
    (error,) = running.errors
    assert isinstance(error, ConfigError)
    where = f"scoring.scorers[1].golden = '{golden}': verdicts that differ: 1 of 2, "
    assert str(error).startswith(f"{where}good: expected true, got 0;")
    assert plant.bus.snapshot().completions == 2, "nothing was taken"
    assert running.life.trouble, "and it never was ready"


def test_a_fault_that_may_pass_is_waited_for_and_no_work_taken_before(
    plant: Plant, serving: Serving, golden: Path, mood: Path
) -> None:
    set_mood(mood, "away")
    plant.group(["good", "bad"])
    with serving(scorer(golden, use="moods:Loop"), retries=0) as running:
        wait_until(lambda: "golden set" in running.life.trouble)
        told = "good: expected true, got no verdict (unavailable: gone fishing)"
        assert running.life.trouble == f"golden set: moods:Loop, {told}"
        assert plant.bus.snapshot().completions == 2
        set_mood(mood, "fair")
        (group,) = plant.ready(1)
        assert running.life.trouble == ""
    assert plant.rewards(group) == {0: 1.0, 1: 0.0}


def test_a_shadow_that_cannot_be_asked_holds_nothing_up(
    plant: Plant, serving: Serving, golden: Path, mood: Path
) -> None:
    set_mood(mood, "away")
    plant.group(["good"])
    with serving("exact", scorer(golden, use="moods:Loop", shadow=True), retries=0):
        (group,) = plant.ready(1)
    assert plant.rewards(group) == {0: 1.0}


def test_it_stops_while_it_waits(plant: Plant, serving: Serving, golden: Path, mood: Path) -> None:
    set_mood(mood, "away")
    with serving(scorer(golden, use="moods:Loop"), retries=0) as running:
        wait_until(lambda: "golden set" in running.life.trouble)
        running.stop()
    assert not running.errors


def test_a_verdict_that_changes_is_counted_told_and_forgiven(
    plant: Plant, serving: Serving, golden: Path, mood: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(scorer(golden), retries=0) as running:
        wait_until(lambda: running.life.trouble == "")
        set_mood(mood, "always")
        wait_until(lambda: numbers(running) == (1, 1))
        told = f"{MOODY}, bad: expected false, got 1"
        wait_until(lambda: running.life.trouble == f"golden set: {told}")
        assert f"golden verdict has changed: {told}" in caplog.text
        plant.group(["good", "bad"])
        (group,) = plant.ready(1)
        assert plant.rewards(group) == {0: 1.0, 1: 1.0}, "the work goes on"
        set_mood(mood, "away")
        asked = mood.with_suffix(".asked")
        before = len(asked.read_text())
        wait_until(lambda: len(asked.read_text()) > before + 20)
        assert numbers(running) == (1, 1), "a fault that may pass says nothing"
        set_mood(mood, "broken")
        wait_until(lambda: numbers(running) == (2, 2))
        set_mood(mood, "fair")
        wait_until(lambda: numbers(running) == (4, 0))
        wait_until(lambda: running.life.trouble == "")


def test_C050_the_process_ends_with_exit_code_2_and_one_line(
    plant: Plant, tmp_path: Path, golden: Path, mood: Path
) -> None:
    set_mood(mood, "always")
    run = Run(
        name=plant.run, steps=1, data={"use": "jsonl", "path": "none"},
        model=Model(path=str(MODEL)), scoring=ScoringKeys(scorers=[scorer(golden)]),
    )  # fmt: skip
    (tmp_path / "run.toml").write_text(dump(run))
    plant.bus.purge()
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "scoring", "run.toml", "--redis", plant.url],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "bad: expected false, got 1" in last and str(golden) in last, done.stderr


def test_a_golden_file_that_cannot_be_read_is_refused_at_once(plant: Plant) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Running(plant, ScoringKeys(scorers=[{"use": "exact", "golden": "nowhere"}]), None)

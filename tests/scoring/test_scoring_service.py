"""Scoring over a real bus: what is delivered is scored once, and a fault is never a reward."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planting import Plant, start_process, wait_until
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pipeline.errors import ConfigError
from pipeline.messages import Beat, Score
from pipeline.metrics import Metrics
from pipeline.protocols import Answer
from pipeline.run import Scoring as ScoringKeys
from services.scoring.ensemble import make_ensemble
from services.scoring.metrics import Numbers

Serving = Callable[..., Any]
OBEY = "strangers:obey"
PATIENT = "strangers:patient"
SLOW = "strangers:slow"
SCALED = {"use": "strangers:Scaled", "factor": 0.5}


def test_members_are_scored_and_their_group_is_released(plant: Plant, serving: Serving) -> None:
    plant.group(["good", "bad", " good\n", ""])
    with serving("exact") as running:
        (group,) = plant.ready(1)
        wait_until(lambda: running.metrics.totals()["members"] == 4)
    assert plant.rewards(group) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    (name,) = group.members[0].score.parts if group.members[0].score else ("",)
    assert re.fullmatch(r"exact/1@[0-9a-f]{8}", name)
    assert group.members[0].score == Score(reward=1.0, outcome=1.0, scorer=name, parts={name: 1.0})
    assert running.metrics.totals()["grading_seconds"] > 0
    assert running.metrics.gauges()["waiting_members"] == 0


def test_rewards_add_up_and_the_outcome_is_the_first_ones(plant: Plant, serving: Serving) -> None:
    plant.group(["good", "", "bad"])
    with serving("exact", SCALED, PATIENT):
        (group,) = plant.ready(1)
    assert plant.rewards(group) == {0: 1.0 + 2.0 + 1.0, 1: 0.0 + 0.0 + 1.0, 2: 0.0 + 1.5 + 1.0}
    score = group.members[2].score
    assert score
    assert score.outcome == 0.0
    assert list(score.parts.values()) == [0.0, 1.5, 1.0]
    assert score.scorer == "+".join(score.parts)
    names = [name.partition("@")[0] for name in score.parts]
    assert names == ["exact/1", f"{SCALED['use']}/2.1", f"{PATIENT}/1"]


def test_C045_a_fault_fails_its_member_and_is_counted_by_reason(
    plant: Plant, serving: Serving
) -> None:
    plant.group(["good", "hang", "die", "raise", "nan", "none", "good"])
    with serving(OBEY, timeout_seconds=0.5) as running:
        (group,) = plant.ready(1)
        wait_until(lambda: running.metrics.totals()["members"] == 7)
    assert plant.rewards(group) == {0: 1.0, 6: 1.0}
    assert group.failed == {
        1: "scorer_error: timeout",
        2: "scorer_error: crashed",
        3: "scorer_error: raised: ValueError: a checker's own",
        4: "scorer_error: bad_verdict: the reward is nan",
        5: "scorer_error: bad_verdict: the reward is None, of type NoneType",
    }
    served = running.metrics.exposition().decode()
    assert "sluice_scoring_reward_count 2.0" in served, "a fault is no reward"
    assert 'sluice_scoring_reward_bucket{le="0.9"} 0.0' in served
    totals = running.metrics.totals()
    counted = {r: totals[f'errors{{reason="{r}"}}'] for r in ("timeout", "crashed", "raised")}
    assert counted == {"timeout": 1, "crashed": 1, "raised": 1}
    assert totals['errors{reason="bad_verdict"}'] == 2
    assert totals["replaced_workers"] == 2


def test_a_group_of_faults_is_closed_and_never_released(plant: Plant, serving: Serving) -> None:
    plant.group(["raise", "raise"])
    with serving(OBEY):
        wait_until(lambda: plant.bus.groups.collect(1).alive == 0)
    assert plant.bus.groups.collect(1).groups == []
    assert "scorer_error" in plant.bus.snapshot().ledger


def test_C045_ten_right_answers_get_ten_ones(plant: Plant, serving: Serving) -> None:
    """With a scorer that sets an alarm, which no thread but a main thread may."""
    plant.group(["alarm"] * 10)
    with serving(OBEY, workers=2):
        (group,) = plant.ready(1)
    assert plant.rewards(group) == dict.fromkeys(range(10), 1.0)


def test_built_from_a_run_it_reads_with_the_models_own_tokenizer(
    plant: Plant, serving: Serving, tmp_path: Path
) -> None:
    tokenizer = Tokenizer(WordLevel({"x": 1, "y": 2, "<end>": 3}))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plant.group(["\x01\x02\x03", "\x02\x01\x03"], reference="x y")
    with serving("exact", model=str(tmp_path)):
        (group,) = plant.ready(1)
    assert plant.rewards(group) == {0: 1.0, 1: 0.0}


def test_coroutines_wait_side_by_side_on_the_loop(plant: Plant, serving: Serving) -> None:
    for _ in range(15):
        plant.group(["good"] * 4)
    with serving({"use": PATIENT, "seconds": 0.3}):
        started = time.monotonic()
        plant.ready(15)
        assert time.monotonic() - started < 60 * 0.3 / 4


def test_a_coroutines_faults_are_told_apart(plant: Plant, serving: Serving) -> None:
    plant.group(["hang", "raise", "nan", "exit", "good"])
    with serving(PATIENT, timeout_seconds=0.3, retries=0):
        (group,) = plant.ready(1)
    assert group.failed == {
        0: "scorer_error: timeout",
        1: "scorer_error: raised: TimeoutError: somebody else's",
        2: "scorer_error: bad_verdict: the reward is nan",
        3: "scorer_error: raised: SystemExit: 3",
    }


def test_a_member_that_cannot_be_read_is_a_fault(plant: Plant, serving: Serving) -> None:
    plant.group(["good", "good"], reference=b"{")
    plant.group(["good", "good"])
    with serving("exact"):
        (group,) = plant.ready(1)
        wait_until(lambda: plant.bus.groups.collect(1).alive == 1)
    assert plant.rewards(group) == {0: 1.0, 1: 1.0}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the slow scorer began, a line each."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("SLOW_NOTES", str(path))
    return path


def test_on_sigterm_what_is_held_goes_back_at_once(
    plant: Plant, serving: Serving, notes: Path
) -> None:
    plant.group(["a", "b", "c", "d"])
    with serving({"use": SLOW, "seconds": 60}, timeout_seconds=120) as running:
        wait_until(notes.read_text)
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started < 5
    plant.bus.beat(Beat(service="scoring", instance="other", boot="other:1"))
    leases = plant.bus.completions.draw("other:1", held=[], count=9)
    assert sorted(lease.member or 0 for lease in leases) == [0, 1, 2, 3]
    assert {lease.strikes for lease in leases} == {0}


def test_one_that_was_declared_dead_lets_go_and_is_reborn(
    plant: Plant, serving: Serving, notes: Path
) -> None:
    plant.group(["a", "b", "c", "d", "e", "f"])
    with serving({"use": SLOW, "seconds": 0.3}) as running:
        wait_until(notes.read_text)
        first = running.life.boot
        plant.bus.bury("scoring-1")
        (group,) = plant.ready(1)
        assert running.life.boot != first
    assert plant.rewards(group) == dict.fromkeys(range(6), 1.0)


def test_it_ends_with_the_run(plant: Plant, serving: Serving) -> None:
    with serving("exact") as running:
        plant.bus.groups.finish(1, "done", "enough")
        running.thread.join(10)
        assert not running.thread.is_alive()


def test_C087_a_killed_process_loses_nothing_and_each_member_is_scored_once(
    plant: Plant, notes: Path
) -> None:
    groups = {plant.group([f"{g}.{m}" for m in range(4)]) for g in range(6)}
    first = start_slow(plant, "scoring-a")
    wait_until(lambda: len(notes.read_text().splitlines()) >= 5)
    first.kill()
    first.wait()
    second = start_slow(plant, "scoring-b")
    plant.bus.bury("scoring-a")  # as the supervisor does
    released = plant.ready(6)
    second.send_signal(signal.SIGTERM)
    assert second.wait(10) == 0
    assert {group.prompt.group for group in released} == groups
    assert all(plant.rewards(group) == dict.fromkeys(range(4), 1.0) for group in released)
    assert all(not group.failed for group in released)
    begun = notes.read_text().splitlines()
    assert set(begun) == {f"{g}.{m}" for g in range(6) for m in range(4)}
    assert len(begun) - 24 <= 8, "more than what it had in hand was graded again"


def start_slow(plant: Plant, instance: str) -> subprocess.Popen[bytes]:
    return start_process(plant, instance, {"scorers": [{"use": SLOW, "seconds": 0.1}]})


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("exat", "did you mean 'exact'"),
        ("nowhere:scorer", "cannot be imported"),
        ({"use": "exact", "strict": True}, "scoring.scorers.strict = True: no such option"),
        ({"use": PATIENT, "second": 1}, "did you mean 'seconds'"),
        ({"use": PATIENT, "seconds": "1"}, "Expected `float`, got `str`"),
    ],
)
def test_a_wrong_scorer_is_refused_before_anything_starts(spec: Any, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_ensemble(ScoringKeys(scorers=[spec]), numbers=Numbers(Metrics("scoring")))
    assert error in str(caught.value)


def test_the_same_scorer_twice_counts_twice_under_two_names() -> None:
    async def grade() -> Score:
        scorers = [{"use": PATIENT}, {"use": PATIENT, "seconds": 0.01}]
        ensemble = make_ensemble(ScoringKeys(scorers=scorers), numbers=Numbers(Metrics("scoring")))
        await ensemble.start()
        score = await ensemble(Answer(text="x", prompt="", reference=None, finish="stop"))
        await ensemble.close()
        return score

    score = asyncio.run(grade())
    assert [name.partition("/")[0] for name in score.parts] == [PATIENT, f"{PATIENT}#2"]
    assert [*score.parts.values()] == [1.0, 1.0]
    assert score.reward == 2.0


def test_a_sum_beyond_all_numbers_is_a_bad_verdict() -> None:
    async def grade() -> Score:
        spec = {"use": "strangers:Scaled", "factor": 1.7e308}
        ensemble = make_ensemble(
            ScoringKeys(scorers=[spec, spec]), numbers=Numbers(Metrics("scoring"))
        )
        await ensemble.start()
        score = await ensemble(Answer(text="x", prompt="", reference=None, finish="stop"))
        await ensemble.close()
        return score

    score = asyncio.run(grade())
    assert score.reward is None
    assert score.error == "bad_verdict: the reward is inf"

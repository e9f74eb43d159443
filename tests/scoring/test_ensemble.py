"""Several scorers on one answer: side by side, in the shadow, in batches, and tried again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import ConfigError
from pipeline.messages import Score
from pipeline.metrics import Metrics
from pipeline.protocols import Answer, Verdict
from pipeline.run import Scoring as ScoringKeys
from services.scoring.ensemble import Ensemble, make_ensemble
from services.scoring.metrics import Numbers

PATIENT = "strangers:patient"
FLAKY = ("strangers:Flaky", "strangers:AsyncFlaky")


def answer(text: str, reference: object = None) -> Answer:
    return Answer(text=text, prompt="", reference=reference, finish="stop")


def with_ensemble(
    *scorers: Any, body: Callable[[Ensemble], Awaitable[Any]], **keys: Any
) -> tuple[Any, dict[str, float]]:
    """What the body makes of the ensemble, and all that was counted."""
    metrics = Metrics("scoring")

    async def run() -> Any:
        ensemble = make_ensemble(ScoringKeys(scorers=[*scorers], **keys), numbers=Numbers(metrics))
        await ensemble.start()
        try:
            return await body(ensemble)
        finally:
            await ensemble.close()

    return asyncio.run(run()), {name: total for name, total in metrics.totals().items() if total}


def scores(
    *scorers: Any, texts: list[str], **keys: Any
) -> tuple[list[float | str | None], dict[str, float]]:
    """Of each text the reward, or the fault, all asked at once."""

    async def body(ensemble: Ensemble) -> list[float | str | None]:
        found = await asyncio.gather(*(ensemble(answer(text)) for text in texts))
        return [one.error or one.reward for one in found]

    found, totals = with_ensemble(*scorers, body=body, **keys)
    return found, totals


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """When the flaky scorer was asked."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("SLOW_NOTES", str(path))
    return lambda: [float(line.split()[0]) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("flaky", FLAKY)
def test_a_fault_that_passes_is_tried_again_and_one_that_does_not_ends_as_unavailable(
    flaky: str, notes: Callable[[], list[float]]
) -> None:
    found, totals = scores(flaky, texts=["2", "99"], retries=2)
    assert found == [3.0, "unavailable: come back later"]
    assert len(notes()) == 6, "three tries each"
    assert totals["retries"] == 4
    assert totals[f'verdicts{{scorer="{flaky}",reason="back again"}}'] == 1


def test_without_retries_every_fault_counts_at_once(notes: Callable[[], list[float]]) -> None:
    found, totals = scores(FLAKY[0], texts=["1"], retries=0)
    assert found == ["unavailable: come back later"]
    assert "retries" not in totals and len(notes()) == 1


def test_the_time_that_was_told_is_waited_for(notes: Callable[[], list[float]]) -> None:
    found, _ = scores({"use": FLAKY[1], "after": 1.0}, texts=["1"])
    assert found == [2.0]
    first, second = notes()
    assert 1.0 <= second - first < 2.0


def test_who_says_to_come_back_in_an_hour_is_not_waited_for(
    notes: Callable[[], list[float]],
) -> None:
    found, _ = scores({"use": FLAKY[1], "after": 3600.0}, texts=["1"])
    assert found == ["unavailable: come back later"]
    assert len(notes()) == 1


@pytest.mark.usefixtures("notes")
def test_a_pause_keeps_no_slot_and_no_worker() -> None:
    async def body(ensemble: Ensemble) -> float:
        pausing = asyncio.create_task(ensemble(answer("1")))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        assert (await ensemble(answer("0"))).reward == 1.0
        assert not pausing.done()
        pausing.cancel()
        return time.monotonic() - started

    seconds, _ = with_ensemble({"use": FLAKY[1], "after": 9.0, "concurrency": 1}, body=body)
    assert seconds < 5


def test_of_a_scorer_no_more_are_asked_at_once_than_it_says() -> None:
    found, _ = scores({"use": "strangers:Crowd", "concurrency": 2}, texts=["x"] * 8)
    assert max(float(most or 0) for most in found) == 2.0
    found, _ = scores("strangers:Crowd", texts=["x"] * 8)
    assert found[-1] == 8.0


def test_a_time_limit_of_its_own_is_a_scorers_own() -> None:
    """The other one needs longer than that."""
    strict = {"use": PATIENT, "timeout_seconds": 0.2}
    slow, texts = {"use": PATIENT, "seconds": 0.6}, ["good", "hang"]
    found, totals = scores(slow, strict, texts=texts, retries=0)
    assert found == [2.0, "timeout"]
    assert totals[f'faults{{scorer="{PATIENT}#2",reason="timeout"}}'] == 1
    found, _ = scores({"use": "strangers:obey", "timeout_seconds": 0.2}, texts=["hang"])
    assert found == ["timeout"]


def test_a_time_out_on_the_loop_is_tried_again_and_a_worker_s_is_not() -> None:
    found, totals = scores(PATIENT, texts=["hang"], timeout_seconds=0.2, retries=1)
    assert (found, totals["retries"]) == (["timeout"], 1)
    found, totals = scores("strangers:obey", texts=["hang"], timeout_seconds=0.2, retries=1)
    assert found == ["timeout"] and "retries" not in totals


def test_all_scorers_are_asked_at_once() -> None:
    async def body(ensemble: Ensemble) -> float:
        started = time.monotonic()
        assert (await ensemble(answer("good"))).reward == 4.0
        return time.monotonic() - started

    spec = {"use": PATIENT, "seconds": 0.5}
    seconds, _ = with_ensemble(spec, spec, spec, spec, body=body)
    assert seconds < 1.5


def test_a_shadow_is_scored_and_costs_nothing() -> None:
    shadow = {"use": "strangers:obey", "shadow": True, "timeout_seconds": 0.3}

    async def body(ensemble: Ensemble) -> list[Score]:
        texts = ("good", "raise", "hang", "nan", "die")
        return await asyncio.gather(*(ensemble(answer(text, text)) for text in texts))

    found, totals = with_ensemble("exact", shadow, body=body, workers=2)
    assert [(one.reward, one.outcome, one.error) for one in found] == [(1.0, 1.0, None)] * 5
    assert [[*one.shadow.values()] for one in found] == [[1.0], [], [], [], []]
    assert all(len(one.parts) == 1 for one in found), "it is no part of the reward"
    assert "strangers:obey" in found[0].scorer
    faults = {name: count for name, count in totals.items() if name.startswith("faults")}
    reasons = ("raised", "timeout", "bad_verdict", "crashed")
    assert faults == {f'faults{{scorer="strangers:obey",reason="{r}"}}': 1 for r in reasons}
    assert 'errors{reason="raised"}' not in totals


def test_where_a_gate_is_shut_the_others_are_graded_all_the_same() -> None:
    gate = {"use": "regex", "pattern": "^yes", "gate": True}
    shadow = {"use": PATIENT, "shadow": True}

    async def body(ensemble: Ensemble) -> Score:
        return await ensemble(answer("no", "no"))

    found, _ = with_ensemble("exact", gate, shadow, body=body)
    assert (found.reward, found.outcome) == (0.0, 1.0)
    assert [*found.parts.values()] == [1.0, 0.0]
    assert [*found.shadow.values()] == [1.0]


def test_what_waits_for_a_batched_scorer_is_asked_together() -> None:
    found, _ = scores({"use": "strangers:Batched", "batch": 3}, texts=["x"] * 8)
    sizes = sorted(float(size or 0) for size in found)
    assert sizes[-1] == 3.0 and set(sizes) <= {1.0, 2.0, 3.0}
    assert sizes.count(3.0) >= 6, "the first may have been alone"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("hang", "timeout", marks=pytest.mark.long),  # 2 s
        ("die", "crashed"),
        ("raise", "raised: ValueError: a checker's own"),
        ("short", "bad_verdict: [] is no list of 1 verdicts"),
        ("nan", "bad_verdict: the reward is nan"),
    ],
)
def test_of_a_batch_only_the_answer_at_fault_has_the_fault(text: str, fault: str) -> None:
    found, _ = scores("strangers:Batched", texts=["x", "x", text, "x", "x"], timeout_seconds=0.5)
    assert found[2] == fault
    assert all(isinstance(found[other], float) for other in (0, 1, 3, 4))


def test_one_that_cannot_be_started_leaves_no_other_running() -> None:
    before = asyncio.run(_children())

    async def run() -> None:
        specs: list[Any] = [PATIENT, "exact", {"use": "strangers:Scaled", "factor": 13}]
        await make_ensemble(ScoringKeys(scorers=specs), numbers=Numbers(Metrics("scoring"))).start()

    with pytest.raises(ConfigError, match="cannot be started \\(RuntimeError: bad luck"):
        asyncio.run(run())
    assert asyncio.run(_children()) == before


async def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_an_async_scorer_has_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["class Both:", "    batch = 4", "    async def __call__(self, answer): return 1.0"]
    (tmp_path / "both.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="is async and has a batch"):
        make_ensemble(ScoringKeys(scorers=["both:Both"]), numbers=Numbers(Metrics("scoring")))


@pytest.mark.parametrize(
    ("use", "line"),
    [
        (
            "strangers:Unasked",
            "scoring.scorers = 'strangers:Unasked': makes nothing that can be asked;",
        ),
        ("strangers:takes_nothing", "scoring.scorers, strangers:takes_nothing: must take 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_starts(use: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_ensemble(ScoringKeys(scorers=[use]), numbers=Numbers(Metrics("scoring")))
    assert str(caught.value).startswith(line)


def test_reasons_are_counted_by_scorer_and_only_so_many() -> None:
    metrics = Metrics("scoring")
    numbers = Numbers(metrics)
    for number in range(100):
        numbers.judged("judge", Verdict(reward=0.0, reason=f"because of {number}"))
    numbers.judged("exact", Verdict(reward=1.0))
    totals = {name: n for name, n in metrics.totals().items() if n and "verdicts" in name}
    assert totals['verdicts{scorer="judge",reason="other"}'] == 68
    assert totals['verdicts{scorer="judge",reason="because of 31"}'] == 1
    assert totals['verdicts{scorer="exact",reason="none"}'] == 1
    assert len(totals) == 34

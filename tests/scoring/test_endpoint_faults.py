"""Judges and services that refuse, talk nonsense, hang, die: it is bounded, and the run goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import endpoints
import pytest
from endpoints import Endpoint
from planting import Plant, wait_until

from pipeline.messages import Score
from pipeline.metrics import Metrics
from pipeline.protocols import Answer, Verdict
from pipeline.run import Scoring as ScoringKeys
from pipeline.verdicts import Fault, checked, raised
from services.scoring.ensemble import Ensemble, make_ensemble
from services.scoring.metrics import Numbers

LIMIT_SECONDS = 1.0
"""Stands for a minute."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def spec(use: str, url: str, **keys: Any) -> dict[str, Any]:
    options = {"model": "m", "rubric": "Is it good?"} if use == "judge" else {}
    return {"use": use, "url": url, **options, **keys}


class Graded:
    """What became of each text, by the scorer; and what was counted."""

    def __init__(self, texts: list[str], *scorers: dict[str, Any], **keys: Any) -> None:
        self.metrics = Metrics("scoring")
        numbers, given = Numbers(self.metrics), {"timeout_seconds": LIMIT_SECONDS, **keys}
        self.ensembles = [
            make_ensemble(ScoringKeys(scorers=[scorer], **given), numbers=numbers)
            for scorer in scorers
        ]
        found = asyncio.run(self._all(texts))
        self.scores = [dict(zip(texts, scores, strict=True)) for scores in found]

    async def _all(self, texts: list[str]) -> list[list[Score]]:
        await asyncio.gather(*(ensemble.start() for ensemble in self.ensembles))
        started = time.monotonic()
        try:
            waits = (asyncio.gather(*(self.one(e, text) for text in texts)) for e in self.ensembles)
            return await asyncio.gather(*waits)
        finally:
            self.seconds = time.monotonic() - started
            await asyncio.gather(*(ensemble.close() for ensemble in self.ensembles))

    async def one(self, ensemble: Ensemble, text: str) -> Score:
        return await ensemble(Answer(text=text, prompt="p", reference="r", finish="stop"))


FAULTS = {
    "good": "",
    "429 0; 7": "",
    "500; 7": "",
    "broken; 7": "",
    "reset; 7": "",
    "half; 7": "",
    "body <html>; 7": "",
    "never; 7": "",
    "503; 503; 7": "unavailable: HTTP 503: not now",
    "body <html>": "bad_verdict: '<html>' is no",
    "never": "timeout",
    "slow 60": "timeout",
    "trickle": "timeout",
    "400; 7": "unavailable: HTTP 400: not now",
    "refuse \\ud800 and\\nmore; 7": "unavailable: HTTP 401: ? and more",
    'body {"reward": "1", "choices": [{"message": {}}]}; 7': "bad_verdict: ",
    "endless; 7": "bad_verdict: the reply has more than",
}
"""What an endpoint does at the first and the second time, and the error that there is at last."""

ONCE = ("good", *[*FAULTS][-4:])


def test_faults_that_pass_are_tried_again_and_the_others_end_at_once(endpoint: Endpoint) -> None:
    with Endpoint() as service:
        both = spec("judge", endpoint.url), spec("http", service.url)
        graded = Graded([*FAULTS], *both, retries=1)
        assert endpoint.times == {text: 1 if text in ONCE else 2 for text in FAULTS}
        assert service.times == endpoint.times
    for scores in graded.scores:
        errors = {text: score.error or "" for text, score in scores.items()}
        assert {t: errors[t][: len(begin)] for t, begin in FAULTS.items()} == FAULTS
        assert [t for t, score in scores.items() if score.reward is not None] == [
            text for text, error in errors.items() if not error
        ]
        assert [t for t, error in errors.items() if not error] == [*FAULTS][:8]
    assert graded.metrics.totals()["retries"] == 2 * (len(FAULTS) - len(ONCE))
    assert graded.seconds < 10.0


def test_words_that_cannot_travel_are_made_such_that_can() -> None:
    assert checked(Verdict(reward=1.0, reason="\ud800x")).reason == "?x"
    assert str(raised(ValueError("\udfff"))) == "raised: ValueError: ?"
    with pytest.raises(Fault, match="the reason is 5, which is no text"):
        checked(Verdict(reward=1.0, reason=5))  # type: ignore[arg-type]


def test_no_more_are_asked_at_once_than_the_run_allows(endpoint: Endpoint) -> None:
    texts = [f"slow 0.05; {n}" for n in range(9)]
    with Endpoint() as service:
        three, two = spec("judge", endpoint.url), spec("http", service.url)
        graded = Graded(texts, {**three, "concurrency": 3}, {**two, "concurrency": 2})
        assert (endpoint.most, service.most) == (3, 2)
    assert not [s.error for scores in graded.scores for s in scores.values() if s.error]


def test_members_are_scored_while_a_judge_keeps_others_waiting(
    plant: Plant, serving: Callable[..., Any], endpoint: Endpoint
) -> None:
    """Beside it a scorer in a worker, and a group that the judge has nothing against."""
    held = plant.group(["never", "500; 500", "say hm", "half", "good", "429 0; 7"], "good")
    quick = plant.group(["good", "bad"], "good")
    scorers = [spec("judge", endpoint.url, timeout_seconds=1.2), {"use": "exact", "weight": 2.0}]
    with serving(*scorers, retries=1) as running:
        (group,) = plant.ready(1)
        assert group.prompt.group == quick
        assert plant.rewards(group) == {0: 3.0, 1: 0.0}
        wait_until(lambda: running.metrics.totals()["members"] == 7)
        assert endpoint.now == 1, "one still hangs, and all others have their scores"
        late = next(g for g in plant.ready(2) if g.prompt.group == held)
        wait_until(lambda: running.metrics.totals()["members"] == 8)
    assert plant.rewards(late) == {4: 3.0, 5: 0.7}
    reasons = {member: why.split(": ")[:2] for member, why in late.failed.items()}
    assert reasons == {
        0: ["scorer_error", "timeout"],
        1: ["scorer_error", "unavailable"],
        2: ["scorer_error", "bad_verdict"],
        3: ["scorer_error", "bad_verdict"],
    }
    totals = running.metrics.totals()
    counted = {why: totals[f'errors{{reason="{why}"}}'] for why in ("timeout", "unavailable")}
    assert counted == {"timeout": 1, "unavailable": 1}
    assert totals['errors{reason="bad_verdict"}'] == 2
    assert totals["retries"] == 4


def test_one_that_is_killed_while_it_replies_is_asked_again_once_it_is_back() -> None:
    text = "never; 7"
    command = [sys.executable, endpoints.__file__, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()

        class Killed(Graded):
            async def one(self, ensemble: Ensemble, text: str) -> Score:
                score = asyncio.create_task(super().one(ensemble, text))
                assert await asyncio.to_thread(process.stdout.readline) == "asked\n"
                process.kill()
                process.wait()
                with Endpoint(int(url.split(":")[2].split("/")[0])) as again:
                    again.times[text] = 1
                    return await score

        graded = Killed([text], spec("judge", url), timeout_seconds=20.0)
    assert process.returncode == -signal.SIGKILL
    assert graded.scores[0][text].reward == 0.7
    assert graded.seconds < 10.0

"""A scorer behind HTTP: the schema as it is documented, and the server that ships as an example."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoints import Endpoint

from pipeline.families import SCORERS
from pipeline.plugins import build
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault, Passing, version_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "scorer_server.py"
ASKED = {
    "version": 1,
    "text": "so 42",
    "prompt": "6 * 7",
    "reference": {"answer": [42]},
    "task": "sums",
    "finish": "stop",
    "max_tokens": 64,
}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


def ask(url: str, *texts: str) -> list[Any]:
    """Verdicts and faults, all asked at once."""
    scorer = build(SCORERS, {"use": "http", "url": url}, at="scoring.scorers")
    answers = [Answer(text=t, prompt="p", reference="42", finish="stop") for t in texts]

    async def grade() -> list[Any]:
        return await asyncio.gather(*map(scorer, answers), return_exceptions=True)

    return asyncio.run(grade())


def test_an_answer_is_posted_as_the_schema_has_it(endpoint: Endpoint) -> None:
    scorer = build(SCORERS, {"use": "http", "url": endpoint.url, "version": "3"}, at="at")
    fields = {name: ASKED[name] for name in ASKED if name != "version"}
    asyncio.run(scorer(Answer(**fields, ids=(1, 2))))
    assert endpoint.bodies == [ASKED]
    assert endpoint.paths == ["/v1"]
    assert version_of(scorer) == "3"


BODIES: dict[str, Verdict | type] = {
    '{"reward": 1}': Verdict(reward=1.0),
    '{"reward": -0.5, "outcome": 1}': Verdict(reward=-0.5, outcome=1.0),
    '{"reward": 0, "reason": "wrong"}': Verdict(reward=0.0, reason="wrong"),
    '{"reward": true}': Fault,
    '{"reward": "1"}': Fault,
    '{"reward": null}': Fault,
    '{"reward": 1e999}': Fault,
    '{"reward": 1' + "0" * 400 + "}": Fault,
    '{"reward": 1, "outcome": null}': Fault,
    '{"reward": 1, "outcome": false}': Fault,
    '{"reward": 1, "outcome": -1e999}': Fault,
    '{"reward": 1, "reason": 1}': Fault,
    '{"reward": 1, "reason": "a\\nb"}': Fault,
    '{"reward": 1, "reason": "\\ud800"}': Fault,
    '{"reward": 1, "outcom": 0}': Fault,
    '{"outcome": 1}': Fault,
    "{}": Fault,
    '{"reward": NaN}': Passing,
    '{"reward": -Infinity}': Passing,
    '{"reward": 1, "reward": 0}': Passing,
    '{"reward": 1} ok': Passing,
    '{"reward": 1': Passing,
    "1": Passing,
    "[1]": Passing,
    "": Passing,
    "OK": Passing,
}
"""What is no JSON object was cut, or is another's, and may pass; what is one is the service's."""


def test_a_reply_is_read_strictly(endpoint: Endpoint) -> None:
    found = ask(endpoint.url, *[f"body {body}" for body in BODIES])
    assert [type(v) if isinstance(v, Fault) else v for v in found] == [*BODIES.values()]
    assert {v.reason for v in found if isinstance(v, Fault)} == {"bad_verdict"}


def test_its_faults_are_told_apart(endpoint: Endpoint) -> None:
    passing, ending = ["429 2", "503", "broken", "reset"], ["400", "redirect 302"]
    found = ask(endpoint.url, *passing, *ending, "endless")
    assert [(type(fault), fault.reason) for fault in found] == [
        *[(Passing, "unavailable")] * len(passing),
        *[(Fault, "unavailable")] * len(ending),
        (Fault, "bad_verdict"),
    ]


def test_nothing_is_remembered(endpoint: Endpoint) -> None:
    scorer = build(SCORERS, {"use": "http", "url": endpoint.url}, at="scoring.scorers")
    answer = Answer(text="5; 6", prompt="p", reference=None, finish="stop")
    assert [asyncio.run(scorer(answer)).reward for _ in range(2)] == [5.0, 6.0]


@pytest.fixture(scope="module")
def example() -> Iterator[str]:
    """As a stranger runs it: without this project, and without what its environment has."""
    command = [sys.executable, "-I", "-S", EXAMPLE, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout
        yield process.stdout.readline().split()[-1]
        process.send_signal(signal.SIGTERM)


def test_the_example_scores(example: str) -> None:
    assert ask(example, "so 42", "42, no: 41", "") == [
        Verdict(reward=1.0, reason="right"),
        Verdict(reward=0.0, reason="wrong"),
        Verdict(reward=0.0, reason="no_final_answer"),
    ]
    cut = httpx.post(example, json={**ASKED, "finish": "length"})
    assert cut.json() == {"reward": -0.1, "outcome": 0.0, "reason": "cut"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {**ASKED, "version": 2}, 400),
        ("", {"version": 1}, 400),
        ("", {**ASKED, "text": 1}, 400),
        ("", [], 400),
        ("/elsewhere", ASKED, 404),
    ],
)
def test_the_example_refuses_what_it_cannot_grade(
    example: str, path: str, body: Any, status: int
) -> None:
    reply = httpx.post(example + path, json=body)
    assert reply.status_code == status
    assert isinstance(reply.json()["error"], str)

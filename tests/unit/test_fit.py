"""What a run can never do is refused before it starts, and what it will do badly is said."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.errors import ConfigError
from pipeline.fit import check_memory, check_rewards, drawbacks
from pipeline.run import (
    Distillation,
    Groups,
    Lag,
    Model,
    Objective,
    Prompting,
    Run,
    Sampling,
    Scoring,
    Up,
)
from services.process import open_run

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
MB = 1_000_000


def made(**sections: Any) -> Run:
    """4 groups of 10 members a step, of 2 epochs; at most 800 bytes a member."""
    keys: dict[str, Any] = {
        "groups": Groups(members=10, per_step=4),
        "sampling": Sampling(max_tokens=100),
        "lag": Lag(max=1),
        "prompting": Prompting(epochs=2),
        **sections,
    }
    return Run(name="run", steps=5, model=Model(path="model"), data="jsonl", **keys)


def said(run: Run, *, examples: int = 10, context: int | None = None) -> list[str]:
    return [*drawbacks(run, examples=examples, context=context)]


def test_a_run_that_fits_says_nothing() -> None:
    assert said(made(), context=101) == []
    assert check_memory(made(), 0) is None
    window = 8 * 10 * 800
    assert check_memory(made(), -(-window * 4 // 3)) is None


@pytest.mark.parametrize(
    ("sections", "context", "line"),
    [
        ({"prompting": Prompting(epochs=1)}, None, "data: 10 examples in 1 epochs are 10 groups"),
        ({"up": Up(inference=9)}, None, "up.inference = 9: engines share a window of 8 groups"),
        ({}, 100, "sampling.max_tokens = 100: the model's context holds 100 tokens"),
        (
            {"groups": Groups(members=10, per_step=4, deadline_seconds=9)},
            None,
            "groups.deadline_seconds = 9: a group may expire while",
        ),
        (
            {"scoring": Scoring(timeout_seconds=601)},
            None,
            "groups.deadline_seconds = 600: a group may expire while",
        ),
        (
            {"objective": Objective(distillation=Distillation())},
            None,
            "objective.distillation: no scorer is a teacher",
        ),
        (
            {"scoring": Scoring(scorers=["exact", {"use": "teacher"}])},
            None,
            "scoring.scorers: there is a teacher",
        ),
    ],
)
def test_each_drawback_is_said_by_itself(
    sections: dict[str, Any], context: int | None, line: str
) -> None:
    (only,) = said(made(**sections), context=context)
    assert only.startswith(line)


@pytest.mark.parametrize("scorer", ["teacher", "mine:lesson"])
def test_a_teacher_that_is_learnt_from_is_no_drawback(scorer: str) -> None:
    objective = Objective(distillation=Distillation())
    assert not said(made(objective=objective, scoring=Scoring(scorers=["exact", {"use": scorer}])))


def test_a_window_that_may_not_fit_into_the_server_is_said() -> None:
    line = check_memory(made(), 84_000)
    assert line is not None and line.startswith("a window of 8 groups may take 0 MB")


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=100_000), Sampling(top_k=500)])
def test_a_step_that_may_not_fit_into_the_server_is_refused(sampling: Sampling) -> None:
    """All that is alive would wait for one more group, and memory for all of them."""
    step = 4 * 10 * sampling.max_tokens * (8 + 4 * sampling.top_k)
    run = made(sampling=sampling)
    with pytest.raises(ConfigError, match=f"the 4 groups of one step may take {step / MB:,.0f} MB"):
        check_memory(run, step)
    assert check_memory(run, 2 * step) is not None, "that is a window's, which may wait"


@pytest.mark.parametrize("lag", [0, 1, 7])
@pytest.mark.parametrize("per_step", [1, 16])
def test_a_window_has_room_for_a_step_whatever_its_keys(lag: int, per_step: int) -> None:
    assert made(lag=Lag(max=lag), groups=Groups(per_step=per_step)).window >= per_step


OVERLONG = {"use": "overlong", "cache": 100}


def test_a_penalty_that_an_empty_answer_would_get_is_refused() -> None:
    check_rewards(made(scoring=Scoring(scorers=["exact", OVERLONG])))
    longer = made(scoring=Scoring(scorers=["exact", {**OVERLONG, "cache": 101}]))
    with pytest.raises(ConfigError, match=r"^scoring\.scorers\[1\]\.cache = 101: .*; give 100 at"):
        check_rewards(longer)


@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        (OVERLONG, True),
        (OVERLONG | {"weight": -1.0}, False),
        (OVERLONG | {"shadow": True}, False),
        ({"use": "reward_model", "path": "model"}, True),
        ({"use": "kl_penalty", "path": "model", "weight": -1.0}, True),
        ({"use": "math", "weight": -0.5}, True),
        ({"use": "math", "weight": 0.5}, False),
        ({"use": "mine:scorer", "weight": -0.5}, False),
        ({"use": "teacher", "weight": -0.5}, False),
    ],
)
def test_what_takes_from_a_reward_is_refused_where_the_advantage_is_for_0_or_more(
    spec: dict[str, Any], is_refused: bool
) -> None:
    scoring = Scoring(scorers=["exact", spec])
    check_rewards(made(scoring=scoring))
    run = made(scoring=scoring, objective=Objective(advantage={"use": "max_rl"}))
    if is_refused:
        with pytest.raises(
            ConfigError, match=r"^scoring\.scorers\[1\] = .*, and max_rl is for none"
        ):
            check_rewards(run)
    else:
        check_rewards(run)


RUN = f"""
name = "fit"
steps = 3
data = {{ use = "jsonl", path = "prompts.jsonl" }}
model = {{ path = "{MODEL}" }}
"""


def dry_run(folder: Path, *overrides: str) -> tuple[int, list[str]]:
    """Exit code and lines on standard error of `sluice up --dry-run`."""
    (folder / "run.toml").write_text(RUN + "sampling = { max_tokens = 99 }")
    (folder / "prompts.jsonl").write_text('{"prompt": "a", "reference": "b"}\n' * 48)
    argv = [sys.executable, "-m", "services.cli", "up", "run.toml", "--dry-run"]
    for override in overrides:
        argv += ["--set", override]
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        argv, cwd=folder, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_a_dry_run_says_it_all_and_starts_nothing(tmp_path: Path) -> None:
    assert dry_run(tmp_path) == (0, [])
    code, lines = dry_run(tmp_path, "steps=4", "up.inference=100", "objective.anchor=proximal",
                          "objective.loss=ppo")  # fmt: skip
    assert code == 0
    starts = ("sluice: data: 48 examples", "sluice: up.inference = 100", "sluice: with objective")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    code, lines = dry_run(tmp_path, 'scoring.scorers=["exact", {use = "overlong", cache = 100}]')
    assert (code, len(lines)) == (2, 1) and "scoring.scorers[1].cache = 100: " in lines[0]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("groups.enough=9", "enough (9) must lie between 2 and members"),
        ("groups.members=5000", "groups.members = 5000: expected `int` <= 4096"),
    ],
)
def test_groups_that_can_never_be_whole_are_refused(
    tmp_path: Path, override: str, line: str
) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "run.toml", [override])
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_every_service_refuses_a_server_that_is_too_small(server_url: str, run_name: str) -> None:
    run = replace(made(sampling=Sampling(max_tokens=10**9)), name=run_name)
    with (
        closing(Bus.connect(server_url, run_name)) as bus,
        closing(redis.from_url(server_url)) as r,
    ):
        r.config_set("maxmemory", 10**9)
        try:
            with pytest.raises(ConfigError, match="so that a step may never be full"):
                open_run(bus, run)
        finally:
            r.config_set("maxmemory", 0)
            bus.purge()


def test_every_service_refuses_rewards_that_do_not_fit(server_url: str, run_name: str) -> None:
    scoring = Scoring(scorers=["exact", {**OVERLONG, "cache": 101}])
    run = replace(made(scoring=scoring), name=run_name)
    refused = pytest.raises(ConfigError, match="even an empty answer")
    with closing(Bus.connect(server_url, run_name)) as bus, refused:
        open_run(bus, run)

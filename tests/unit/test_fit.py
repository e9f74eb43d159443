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
from pipeline.fit import check_memory, drawbacks
from pipeline.run import Groups, Lag, Model, Prompting, Run, Sampling, Scoring, Up
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
    ],
)
def test_each_drawback_is_said_by_itself(
    sections: dict[str, Any], context: int | None, line: str
) -> None:
    (only,) = said(made(**sections), context=context)
    assert only.startswith(line)


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

"""A real run looked at while it goes on, and after it was killed: `sluice top`, `sluice report`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from stream import FAKE, read_report, start, write_run

pytestmark = pytest.mark.slow


def await_that(claim: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
    deadline = monotonic() + seconds
    while not claim():
        assert monotonic() < deadline, f"no {what} within {seconds} s"
        sleep(0.05)


def told(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command says, on either stream."""
    done = start(folder, *arguments)
    out, err = done.communicate(timeout=60)
    assert done.returncode == code, out + err
    return out + err


def steps_of(folder: Path) -> int:
    path = folder / "runs" / "run" / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_run_can_be_looked_at_in_flight_and_after_it_was_killed(tmp_path: Path) -> None:
    path = write_run(tmp_path, prompts=2000, top={"steps": 1000}, **FAKE)
    up = start(tmp_path, "up", str(path))
    try:
        await_that(lambda: steps_of(tmp_path) >= 4, "fourth step")
        picture = told(tmp_path, "top", str(path), "--once")
        report_line = told(tmp_path, "report", "run").splitlines()[-1]
        in_flight = read_report(tmp_path)
    finally:
        up.kill()
        up.communicate()
    assert_live(picture)
    assert report_line == "report: runs/run/report.html"
    assert in_flight["outcome"] == "running" and in_flight["balanced"] is True
    assert in_flight["steps"] >= 4 and sum(in_flight["lag_tokens"].values()) > 0
    assert sum(in_flight["series"]["generated_per_second"]) > 0
    assert set(in_flight["idle_seconds"]["training"]) >= {"groups"}
    assert in_flight["now"]
    assert_killed(tmp_path, up, steps=in_flight["steps"])


def assert_live(picture: str) -> None:
    lines = picture.splitlines()
    assert {len(line) for line in lines} == {80}, picture
    assert lines[0].startswith("╭─  run  running ")
    (tokens,) = [line for line in lines if line.startswith("│ tokens/s")]
    assert "—" not in tokens
    (reward,) = [line for line in lines if line.startswith("│ reward")]
    assert " from " in reward and "lag  mean " in reward
    for instance in ("prompting-0", "inference-0", "scoring-0", "training-0"):
        assert f"│ {instance} " in picture


def assert_killed(folder: Path, up: subprocess.Popen[str], *, steps: int) -> None:
    """Nothing of it runs any more, and its folder still says what was learned."""
    assert up.returncode == -9
    await_that(lambda: not answers(folder / "runs" / "run" / "valkey" / "socket"), "end")
    said = told(folder, "report", str(folder / "runs" / "run"))
    assert said.startswith("without its server: ") and "no server answers there" in said
    report = read_report(folder)
    assert report["outcome"] == "unknown" and report["steps"] >= steps
    assert len(report["series"]["reward"]) == steps_of(folder)


def answers(link: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(link.resolve()))
        except OSError:
            return False
    return True

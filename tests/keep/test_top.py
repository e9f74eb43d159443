"""`sluice top` against a real server: one picture for a pipe, and a screen that q leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from acts import Acts
from keeper import Sluice, refusal
from typer.testing import CliRunner

from pipeline.messages import Beat
from services.cli import app
from services.keep.meeting import wanted

ROOT = Path(__file__).resolve().parents[2]
SOON_SECONDS = 20.0
TRAINED = {"steps": 2.0, "wall_seconds": 8.0, 'lag_tokens{steps="0"}': 30.0}


@pytest.fixture
def trained(manned: Acts) -> Acts:
    """Its trainer says what it has done."""
    beat = Beat(
        service="training",
        instance="training-0",
        boot="training-0:t",
        waiting_for="groups",
        totals=TRAINED,
        gauges={"reward": 0.75, "lag_mean_steps": 0.5, "lag_max_steps": 1.0},
        curves={"reward": ((1.0, 0.25), (2.0, 0.75))},
    )
    manned.bus.beat(beat)
    manned.admit(3)
    return manned


def test_a_live_run_in_one_picture(trained: Acts, sluice: Sluice, run_name: str) -> None:
    done = sluice("top", "--once")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert {len(line) for line in lines} == {80}
    assert lines[0].startswith(f"╭─  {run_name}  running ")
    text = "\n".join(lines)
    assert "0 of 10" in text
    assert "tokens/s  0 generated   0 trained" in text  # which two looks can tell
    assert "0.750 from 0.250" in text and "mean 0.5, max 1 of 2" in text
    assert "3 of 8: 3 in generation, 0 in scoring, 0 ready" in text
    for service in ("prompting", "inference", "scoring", "training"):
        assert f"{service}-0" in text
    assert "groups" in text


def test_a_name_and_an_address_are_enough(
    trained: Acts, server_url: str, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained.bus.groups.finish(1, "done", "2 steps")  # which needs one look only
    done = CliRunner().invoke(app, ["top", run_name, "--redis", server_url])
    assert done.exit_code == 0, done.output
    assert f" {run_name}  done " in done.stdout
    assert "the run is done: 2 steps" in done.stdout
    assert " of 10" not in done.stdout


def test_it_changes_nothing(trained: Acts, sluice: Sluice) -> None:
    trained.bus.groups.finish(1, "failed", "no memory")

    def changes() -> int:
        return int(trained.client.info("persistence")["rdb_changes_since_last_save"])

    before = changes()
    done = sluice("top", "--once")
    assert (done.exit_code, changes()) == (0, before)
    assert "the run is failed: no memory" in done.stdout


def test_a_run_that_is_not_there_is_one_line(
    acts: Acts, sluice: Sluice, server_url: str, run_name: str
) -> None:
    line = refusal(sluice("top", "--set", "name=absent"))
    assert line.startswith("name = 'absent': no such run at unix://") and run_name in line
    line = refusal(CliRunner().invoke(app, ["top", "absent", "--redis", server_url]))
    assert line.startswith("name = 'absent': no such run at unix://")
    assert "--set" not in line


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("absent", "--redis: is needed: there is no runs/absent/run.toml here; give --redis URL"),
        ("no/such.toml", "RUN = 'no/such.toml': is not there; name a RUN.toml, or a run"),
        ("absent.toml", "RUN = 'absent.toml': is not there; name a RUN.toml, or a run"),
        ("x" * 300, "RUN = 'xxx"),
    ],
)
def test_what_names_no_run_is_one_line(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, argument: str, said: str
) -> None:
    monkeypatch.delenv("SLUICE_REDIS")
    assert refusal(CliRunner().invoke(app, ["top", argument])).startswith(said)


def test_a_run_is_found_by_its_file_its_folder_or_its_name(
    sluice: Sluice, tmp_path: Path, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / run_name
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text((tmp_path / "run.toml").read_text())
    assert wanted("run.toml").folder == Path("runs") / run_name
    for told in (str(folder), str(folder / "run.toml"), run_name):
        found = wanted(told)
        assert found.run is not None
        assert (found.name, found.folder.resolve()) == (run_name, folder)
    assert wanted("other").run is None
    monkeypatch.chdir(tmp_path / "runs")
    assert wanted(str(folder)).folder == folder


@contextmanager
def on_a_terminal(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`sluice` with a terminal of 80 by 24 of its own, and the other end of that."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli", *arguments],
        cwd=folder,
        env=environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # where Ctrl-C is a signal
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, words: str, count: int = 1) -> str:
    """What a terminal has shown when it has shown these words so often."""
    seen, deadline = "", time.monotonic() + SOON_SECONDS
    while seen.count(words) < count:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.parametrize("way", ["q", "Ctrl-C", "SIGTERM"])
def test_it_follows_a_run_on_a_screen_of_its_own_until_one_leaves(
    trained: Acts, sluice: Sluice, tmp_path: Path, way: str
) -> None:
    with on_a_terminal(tmp_path, "top", "run.toml") as (top, terminal):
        before = termios.tcgetattr(terminal)
        frames = 2 if way == "q" else 1
        seen = read_until(terminal, "q leaves", frames)
        if way == "SIGTERM":
            top.send_signal(signal.SIGTERM)
        else:
            os.write(terminal, {"q": b"q", "Ctrl-C": b"\x03"}[way])
        seen += read_until(terminal, "\x1b[?1049l")
        assert top.wait(timeout=SOON_SECONDS) == 0
        assert termios.tcgetattr(terminal) == before
    assert "\x1b[?1049h" in seen  # the screen that was there comes back
    # Between two pictures nothing is cleared: the cursor goes home, and writes over it.
    assert "\x1b[2J" not in seen.partition("q leaves")[2]
    assert "Traceback" not in seen

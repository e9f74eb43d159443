"""`sluice report` from a run's folder, from its server, and from whichever of them there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from acts import Acts
from keeper import Sluice, refusal
from typer.testing import CliRunner

from pipeline.messages import Beat
from pipeline.watch import SERVICES
from services.cli import app
from services.view.words import NO_BREAK

LINE = {"members": 4, "tokens": 40, "lag_tokens": [[0, 30], [1, 10]], "refused": {"stale": 1}}


@pytest.fixture
def folder(sluice: Sluice, tmp_path: Path, run_name: str) -> Path:
    """The run's folder, with two steps."""
    folder = tmp_path / "runs" / run_name
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text((tmp_path / "run.toml").read_text())
    write_steps(folder, 2)
    return folder


def write_steps(folder: Path, steps: int) -> None:
    lines = [LINE | {"step": n, "seconds": 2.0 * n, "reward": n / 10} for n in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def report_of(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return told


def amend(folder: Path, **said: object) -> None:
    """The report that is there says something else."""
    (folder / "report.json").write_text(json.dumps(report_of(folder) | said))


def bury_all(acts: Acts) -> None:
    for instance in (*(f"{service}-0" for service in SERVICES), "e", "s"):
        acts.bus.bury(instance)


def test_a_run_in_flight_is_reported_from_both(manned: Acts, sluice: Sluice, folder: Path) -> None:
    group = manned.make_ready(1)[0]
    manned.admit(2)
    manned.commit(1, [group])
    done = sluice("report")
    assert done.exit_code == 0, done.output
    told = report_of(folder)
    assert (told["outcome"], told["steps"], told["target_steps"]) == ("running", 1, 10)
    assert told["series"]["reward"] == [0.1, 0.2]
    assert told["lag_tokens"] == {"0": 60, "1": 20}
    assert told["ledger"]["generated"]["tokens"] > 0 and told["balanced"] is True
    assert told["now"] == ["nobody waits"]
    assert told["restarts"] == {}
    assert done.stdout.splitlines()[-1] == f"report: {Path('runs') / folder.name / 'report.html'}"
    assert "What goes on" in (folder / "report.html").read_text()


def test_without_its_server_the_folder_tells(
    sluice: Sluice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_REDIS")
    done = sluice("report")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("without its server: `sluice up` keeps no server for run ")
    told = report_of(folder)
    assert (told["outcome"], told["steps"], told["balanced"]) == ("unknown", 2, None)
    assert (told["members_trained"], told["members_refused"]) == (8, {"stale": 2})
    assert "as far as its folder knows" in (folder / "report.html").read_text()


def test_what_was_reported_before_its_server_went_is_not_forgotten_unless_it_is_older(
    manned: Acts, sluice: Sluice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(folder, 1)
    manned.commit(1, manned.make_ready(1))
    sluice("report")
    before = report_of(folder)
    monkeypatch.delenv("SLUICE_REDIS")
    sluice("report")
    after = report_of(folder)
    assert after["ledger"] == before["ledger"] != {}
    assert (after["outcome"], after["now"]) == ("unknown", [])
    write_steps(folder, 3)
    sluice("report")
    assert (report_of(folder)["steps"], report_of(folder)["ledger"]) == (3, {})


def test_a_run_that_is_over_keeps_its_report(
    sluice: Sluice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sluice("report")
    amend(folder, outcome="done", reason="2 steps", restarts={"x": 1})
    (folder / "report.html").unlink()
    monkeypatch.delenv("SLUICE_REDIS")
    assert sluice("report").exit_code == 0
    assert report_of(folder)["outcome"] == "done"
    assert '<span class="state done">done</span>' in (folder / "report.html").read_text()


def test_who_was_started_again_is_counted_anew_while_a_run_goes_on(
    manned: Acts, sluice: Sluice, folder: Path
) -> None:
    sluice("report")
    assert report_of(folder)["restarts"] == {}
    manned.bus.beat(Beat(service="scoring", instance="scoring-0", boot="scoring-0:u", pid=7))
    sluice("report")
    assert report_of(folder)["restarts"] == {"scoring-0": 1}


def test_how_it_ended_is_known_to_who_saw_it_until_the_run_goes_on(
    manned: Acts, sluice: Sluice, folder: Path
) -> None:
    bury_all(manned)
    sluice("report")
    assert report_of(folder)["reason"] == "no process is alive"
    ended = {"outcome": "failed", "reason": "training-0 exited with 1", "restarts": {"x": 3}}
    amend(folder, **ended)
    sluice("report")
    assert ended.items() <= report_of(folder).items()
    manned.commit(1, manned.make_ready(1))
    sluice("report")
    assert (report_of(folder)["outcome"], report_of(folder)["steps"]) == ("running", 1)


def test_what_was_said_of_a_former_end_is_not_said_of_a_later_one(
    manned: Acts, sluice: Sluice, folder: Path
) -> None:
    sluice("report")
    amend(folder, outcome="failed", reason="training-0 exited with 1")
    manned.commit(1, manned.make_ready(1))
    bury_all(manned)
    sluice("report")
    assert (report_of(folder)["outcome"], report_of(folder)["steps"]) == ("stopped", 1)
    manned.bus.groups.finish(1, "done", "the data is over")
    sluice("report")
    assert report_of(folder)["outcome"] == "done"


def test_from_afar_the_server_is_enough(
    manned: Acts, server_url: str, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    curves = {"reward": ((1.0, 0.25), (4.0, 0.5))}
    beat = Beat(service="training", instance="training-0", boot="training-0:t", curves=curves)
    manned.bus.beat(beat)
    done = CliRunner().invoke(app, ["report", run_name, "--redis", server_url])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"report: {run_name}.html"
    text = (tmp_path / f"{run_name}.html").read_text().replace(NO_BREAK, " ")
    assert "training reward 0.25 → 0.5" in text and ">step</text>" in text
    assert not (tmp_path / "runs").exists()


def test_with_neither_there_is_one_line(
    acts: Acts, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal(sluice("report", "--set", "name=absent"))
    assert line.startswith("name = 'absent': no such run at unix://")
    monkeypatch.delenv("SLUICE_REDIS")
    assert refusal(sluice("report")).startswith("--redis: is needed")

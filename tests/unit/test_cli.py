"""The command line in this process: what it prints of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app

RUN = """
name = "run"
steps = 1
data = "jsonl"
model = { path = "owner/model" }
bus = { url = "redis://me:secret@host:1/0?db=2" }
"""


@pytest.mark.parametrize("command", ["prompting", "training", "evaluate"])
def test_a_dry_run_shows_no_password(tmp_path: Path, command: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    done = CliRunner().invoke(app, [command, str(path), "--dry-run"])
    assert done.exit_code == 0
    assert 'url = "redis://me:***@host:1/0?db=2"' in done.output
    assert "secret" not in done.output


def test_the_rules_of_a_run_are_printed_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    done = CliRunner().invoke(app, ["doctor", str(path), "--acl"])
    assert done.exit_code == 0
    assert [line.split()[:3] for line in done.output.splitlines()] == [
        ["ACL", "SETUSER", f"run-{user}"]
        for user in ("prompting", "inference", "scoring", "training", "watch")
    ]
    assert ">" not in done.output, "it carries no password"


@pytest.mark.parametrize("told", ["run", "runs/run", "runs/run/run.toml"])
def test_a_run_is_named_by_its_file_its_folder_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/run").mkdir(parents=True)
    Path("runs/run/run.toml").write_text(RUN)
    for command in ("evaluate", "replay"):
        done = CliRunner().invoke(app, [command, told, "--dry-run"])
        assert done.exit_code == 0 and 'name = "run"' in done.output
    done = CliRunner().invoke(app, ["doctor", "other", "--acl"])
    assert done.exit_code == 2
    assert "there is no runs/other/run.toml" in done.output

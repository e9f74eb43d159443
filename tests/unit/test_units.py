"""The systemd units in examples/ are sound, and their commands are ours."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.bus.connection import client_of
from services.cli import app

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
SPECIFIERS = {"%i": "1", "%H": "host", "%d": "/run/credentials"}


def values(unit: Path, key: str) -> list[str]:
    """What the unit says of a key, as the instance 1 of it."""
    found = re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)
    return [re.sub("%[iHd]", lambda match: SPECIFIERS[match[0]], value) for value in found]


def test_there_is_a_unit_for_each_service() -> None:
    assert [unit.name.partition(".")[0].rstrip("@") for unit in UNITS] == [
        "sluice-inference", "sluice-prompting", "sluice-scoring", "sluice-training",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_s_command_is_taken_by_the_command_line(unit: Path) -> None:
    [command] = values(unit, "ExecStart")
    _, service, _, *options = shlex.split(command)
    assert service in unit.name
    run = str(ROOT / "examples" / "demo.toml")
    done = CliRunner().invoke(app, [service, run, *options, "--dry-run"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_logs_in_by_its_service_s_user_with_a_password_in_a_file(unit: Path) -> None:
    service = re.split("[-@.]", unit.name)[1]
    [url] = [v for v in values(unit, "Environment") if "SLUICE_REDIS" in v]
    assert f"//demo-{service}@" in url and "password_file=/run/credentials/redis" in url
    assert url.startswith('"SLUICE_REDIS=rediss://')
    assert values(unit, "LoadCredential") == [f"redis:/etc/sluice/{service}.password"]


def test_a_password_file_goes_with_the_user_of_the_url(tmp_path: Path) -> None:
    (tmp_path / "redis").write_text("open\n")
    client = client_of(f"rediss://demo-scoring@host:1/0?password_file={tmp_path / 'redis'}")
    options = client.connection_pool.connection_kwargs
    assert (options["username"], options["password"]) == ("demo-scoring", "open")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    path = tmp_path / unit.name.replace("@", "@1")
    # The command that it names is not installed here.
    path.write_text(unit.read_text().replace("/opt/sluice/bin/sluice", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

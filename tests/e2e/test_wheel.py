"""What a user installs: the wheel, by itself, away from the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--isolated", "--no-input", "--disable-pip-version-check")
NO_CODE = ("*.lua", "*.html", "py.typed")


def call(*words: str, cwd: Path, **environment: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment or None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for path in (ROOT / "pyproject.toml", ROOT / "LICENSE", *ROOT.glob("*.md")):
        shutil.copy(path, source)
    for package in ("pipeline", "services"):
        shutil.copytree(ROOT / package, source / package)
    call(
        *PIP,
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        ".",
        str(source),
        cwd=folder,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_it_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("pipeline", "services")
        for pattern in ("*.py", *NO_CODE)
        for path in (ROOT / package).rglob(pattern)
    }
    assert {"services/view/report.html", "pipeline/py.typed", "pipeline/bus/lua/take.lua"} <= wanted
    assert packed == wanted


def test_it_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    call(
        *PIP,
        "--python",
        str(python),
        "install",
        "--no-index",
        "--no-deps",
        str(wheel),
        cwd=tmp_path,
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    dependencies = sysconfig.get_path("purelib")  # as a path: its links to our sources do not count
    environment = {"PYTHONPATH": dependencies, "PATH": os.environ["PATH"]}
    where = (
        "import pipeline, services.view.page as p; print(pipeline.__file__, p.TEMPLATE.is_file())"
    )
    place, found = call(str(python), "-c", where, cwd=empty, **environment).split()
    assert place.startswith(str(tmp_path)) and found == "True"
    told = call(str(python.with_name("sluice")), "--help", cwd=empty, **environment)
    assert "sluice up RUN.toml" in told

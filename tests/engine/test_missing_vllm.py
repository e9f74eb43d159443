"""What a user is told whose environment has no vLLM, or an old one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.families import ENGINES

try:
    plugins.find(ENGINES, "vllm", "inference.engine")
except ConfigError as exc:
    print(exc)
"""
OLD = {
    "no_vllm": ("raise ModuleNotFoundError(name='vllm')", "pip install 'sluice-rl[vllm]'"),
    "an_old_one": (
        '__version__ = "0.9.1"',
        "it has no vllm.config; Sluice needs vLLM 0.32 or newer",
    ),
}


@pytest.mark.parametrize("case", OLD)
def test_the_line_says_what_to_install_and_names_both_versions(case: str, tmp_path: Path) -> None:
    package, said = OLD[case]
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(package)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert ("vllm 0.9.1" in done.stdout) == (case == "an_old_one")
    assert said in done.stdout and done.stdout.count("\n") == 1

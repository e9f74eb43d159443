"""What all services have around their loops: who may join, and what is said of what is missing."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.bus.bus import Bus
from pipeline.errors import ConfigError
from pipeline.run import Model, Run
from services.process import open_run, serve

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["a|b", "", "a b", "a\nb", "a\x1b[2J", "a\u202eb", "n" * 200])
def test_a_name_that_no_boot_can_have_is_refused_before_anything_is_asked(name: str) -> None:
    run = Run(name="run", steps=1, model=Model(path="none"), data="jsonl")
    with pytest.raises(ConfigError, match=r"--instance = .*: is no name of a process"):
        serve("prompting", run, redis="redis://nobody", instance=name, http="127.0.0.1:0")


@pytest.fixture
def ended(server_url: str, run_name: str, tmp_path: Path) -> Iterator[Run]:
    """A run that is over, so that a service that joins leaves at once."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "reference": "b"}\n')
    run = Run(
        name=run_name,
        steps=1,
        model=Model(path=str(ROOT / "examples" / "demo" / "model")),
        data={"use": "jsonl", "path": str(tmp_path / "data.jsonl")},
    )
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with closing(Bus.connect(server_url, run_name)) as bus:
        open_run(bus, run)
        bus.groups.lead(1, "training-0:a")
        bus.groups.finish(1, "done", "")
        yield run
        bus.purge()
    for number, handler in former.items():
        signal.signal(number, handler)


def test_the_door_is_told_in_the_log_and_closed_at_the_end(
    ended: Run, server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    serve("prompting", ended, redis=server_url, instance="prompting-0", http="127.0.0.1:0")
    [line] = [r.getMessage() for r in caplog.records if "/metrics" in r.getMessage()]
    assert line.startswith("serving /metrics at http://127.0.0.1:")
    with pytest.raises(OSError):
        urllib.request.urlopen(line.rpartition(" ")[2], timeout=1)


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("prompting", "transformers", "text"),
        ("scoring", "transformers", "text"),
        ("training", "torch", "model"),
        ("inference", "torch", "model"),
        ("evaluate", "torch", "model"),
    ],
)
def test_a_package_that_is_missing_names_the_extra_that_has_it(
    command: str, package: str, extra: str, server_url: str, run_name: str, tmp_path: Path
) -> None:
    """As where it was never installed: importing it raises ModuleNotFoundError."""
    words = [command, str(ROOT / "examples" / "demo.toml"), "--set", f"name={run_name}"]
    words += ["--base"] if command == "evaluate" else ["--redis", server_url]
    data = tmp_path / "data.jsonl"  # the demo's own are made by its first run
    data.write_text('{"prompt": "a1b2=2", "reference": "a1b2,a1b2"}\n')
    words += ["--set", f"data.path={data}", "--set", f"evaluation.data.path={data}"]
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {words!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "from services.cli import main; main()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert package in last and f"pip install 'sluice-rl[{extra}]'" in last
    assert "Traceback" not in done.stderr

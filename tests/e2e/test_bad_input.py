"""Bad input through the real command line: exit 2, and one line that says what, where and what now.

What `sluice up` can know before it starts a process, it says before; a service says the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stream import FAKE, MODEL, start, write_run

from pipeline import config
from pipeline.serve import EXIT_INPUT, exit_code
from services.process import serve

LINE = '{"prompt": "ab=2", "reference": "abab"}'


def sluice(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command in the folder, whose every process has ended."""
    process = start(folder, *arguments)
    try:
        _, error = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert not left_in(folder)
    return process.returncode, error


def left_in(folder: Path) -> list[psutil.Process]:
    """Every process that works in the folder."""
    left = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder:
                left.append(process)
        except psutil.Error:
            continue
    return left


def refusal(folder: Path, *arguments: str) -> str:
    """The one line that a command ends with; nothing else is on standard error."""
    code, error = sluice(folder, *arguments)
    assert code == 2, error
    assert error.startswith("sluice: ") and error.count("\n") == 1, error
    return error.removeprefix("sluice: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("lag.maxx=3", "--set lag.maxx: no such key; did you mean 'lag.max'?"),
        ("lag.max=x", "--set lag.max = 'x': expected `int`, got `str`; see docs/conf"),
        ("groups.members=0", "--set groups.members = 0: expected `int` >= 1; see docs/conf"),
    ],
    ids=["misspelt", "type", "range"],
)
@pytest.mark.parametrize("command", ["scoring", "up"])
def test_a_wrong_key_is_refused_by_every_command(
    tmp_path: Path, command: str, override: str, line: str
) -> None:
    path = write_run(tmp_path)
    assert refusal(tmp_path, command, path.name, "--set", override).startswith(line)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("data.path=absent.jsonl", "absent.jsonl: cannot be read (No such file"),
        ("data.path=empty.jsonl", "empty.jsonl: there is no example in this file; write one JSON"),
        ("data.path=torn.jsonl", "torn.jsonl, line 3 = '{\"prompt\"': not JSON ("),
        (
            "data.path=wrong.jsonl",
            "wrong.jsonl, line 2 = '{\"prompt\": 3}': prompt: Expected `str | array`",
        ),
        ("evaluation.data={ use = 'jsonl', path = 'gone.jsonl' }", "gone.jsonl: cannot be read"),
        ("model.path=./absent", "model.path = './absent': there is no such folder; give a folder"),
        ("model.path=a/model/absent", "model.path = 'a/model/absent': there is no such folder"),
        ("data=jsonll", "data = 'jsonll': no such plug-in; did you mean 'jsonl'?"),
        ("inference.engine=vlm", "inference.engine = 'vlm': no such plug-in; did you mean 'vllm'?"),
        ("objective.loss=cispa", "objective.loss = 'cispa': no such plug-in; did you mean 'cispo'"),
        ("data.pth=x", "data.pth = 'x': no such option; did you mean 'path'?"),
        (
            "inference.engine={ use = 'hf', slot = 3 }",
            "inference.engine.slot = 3: no such option; did you mean 'slots'?",
        ),
        ("scoring.scorers=[{ use = 'exact', a = 1 }]", "scoring.scorers[0].a = 1: no such option"),
        ("scoring.scorers=['mine:judge']", "scoring.scorers[0] = 'mine:judge': cannot be imported"),
    ],
)
def test_up_refuses_what_it_can_know_before_it_starts_anything(
    tmp_path: Path, override: str, line: str
) -> None:
    path = write_run(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "torn.jsonl").write_text(f'{LINE}\n\n{{"prompt"\n')
    (tmp_path / "wrong.jsonl").write_text(f'{LINE}\n{{"prompt": 3}}\n')
    assert refusal(tmp_path, "up", path.name, "--set", override).startswith(line)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_refuses_the_same(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    assert "absent" in refusal(
        tmp_path, "up", path.name, "--dry-run", "--set", "data.path=absent.jsonl"
    )
    assert sluice(tmp_path, "up", path.name, "--dry-run") == (0, "")


@pytest.mark.parametrize("command", ["up", "scoring"])
def test_a_dry_run_refuses_an_unknown_option_of_any_part(tmp_path: Path, command: str) -> None:
    path = write_run(tmp_path)
    override = "objective.loss={ use = 'ppo', clip = 0.1 }"
    line = refusal(tmp_path, command, path.name, "--dry-run", "--set", override)
    assert line.startswith("objective.loss.clip = 0.1: no such option; ")


@pytest.mark.parametrize("command", ["inference", "up"])
def test_without_a_server_at_its_url_no_run_begins(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"redis://127.0.0.1:{free.getsockname()[1]}"
    path = write_run(tmp_path)
    line = refusal(tmp_path, command, path.name, "--redis", url)
    assert line.startswith(f"redis URL = '{url}': no server answers there; start a server there")
    assert not [*tmp_path.glob("runs/*")]


def test_a_service_without_a_url_says_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_REDIS", raising=False)
    line = refusal(tmp_path, "inference", write_run(tmp_path).name)
    assert line.startswith("--redis: is needed to join a run; give --redis URL or set SLUICE_REDIS")


@pytest.mark.parametrize(
    ("service", "override", "line"),
    [
        ("prompting", "data.path=torn.jsonl", "torn.jsonl, line 1 = '{\"prompt\"': not JSON ("),
        ("scoring", "scoring.scorers=['mine:judge']", "scoring.scorers = 'mine:judge': cannot be"),
    ],
)
def test_a_service_refuses_what_is_its_own(
    tmp_path: Path, server_url: str, run_name: str, service: str, override: str, line: str
) -> None:
    path = write_run(tmp_path, top={"name": run_name})
    (tmp_path / "torn.jsonl").write_text('{"prompt"\n')
    arguments = (service, path.name, "--redis", server_url, "--set", override)
    assert refusal(tmp_path, *arguments).startswith(line)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A model's folder with half a configuration."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"})[:-3])
    return folder


@pytest.fixture
def signals() -> Iterator[None]:
    """As they were."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_a_service_refuses_a_model_that_cannot_be_loaded(
    tmp_path: Path,
    broken: Path,
    server_url: str,
    run_name: str,
    signals: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has torch already."""
    run = config.load(write_run(tmp_path, top={"name": run_name}, model={"path": str(broken)}))

    def act() -> None:
        serve("inference", run, redis=server_url, instance="inference-0", http="127.0.0.1:0")

    assert exit_code(act) == EXIT_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sluice: model.path = '{broken}': no causal language model could be")
    assert "config.json" in line and line.endswith("or a Hugging Face name")


@pytest.mark.slow
def test_up_ends_with_the_line_of_the_service_that_refused(tmp_path: Path) -> None:
    """The trainer: nobody else looks at the weights."""
    broken = shutil.copytree(MODEL, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    path = write_run(tmp_path, model={"path": str(broken)}, **FAKE)
    code, error = sluice(tmp_path, "up", path.name)
    last = error.splitlines()[-1]
    assert (code, last.startswith("sluice: ")) == (2, True), error
    assert f"training-0 refused its input: model.path = '{broken}': no causal" in last
    assert (tmp_path / "runs" / "run" / "report.html").is_file(), os.listdir(tmp_path / "runs")

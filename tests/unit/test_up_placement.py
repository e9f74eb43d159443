"""Which processes a run becomes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from up_made import RUN

from pipeline import config
from pipeline.errors import ConfigError
from pipeline.run import Bus, Training, Up
from services.up import guard
from services.up.folder import claim, mark_ended
from services.up.placement import evaluation, place

FOLDER = Path("runs/made")


def test_processes_stand_in_the_order_of_their_start() -> None:
    assert [p.instance for p in place(RUN, FOLDER, "unix:///s")] == [
        "training-0",
        "inference-0",
        "inference-1",
        "scoring-0",
        "scoring-1",
        "prompting-0",
    ]


def test_a_process_is_the_command_that_a_user_would_type() -> None:
    process = place(RUN, FOLDER, "unix:///s")[1]
    assert process.argv == (
        sys.executable,
        "-m",
        "services.cli",
        "inference",
        "runs/made/run.toml",
        "--instance",
        "inference-0",
    )
    assert process.log == FOLDER / "logs" / "inference-0.log"


@pytest.mark.parametrize(
    ("cores", "engines", "threads"), [(2, 1, "1"), (16, 1, "8"), (16, 3, "4"), (2, 4, "1")]
)
def test_processes_that_are_busy_share_the_cores(cores: int, engines: int, threads: str) -> None:
    run = replace(RUN, up=Up(inference=engines))
    for process in place(run, FOLDER, "unix:///s", environment={}, cores=cores):
        assert process.environment["OMP_NUM_THREADS"] == threads


def test_ranks_are_one_process_to_whoever_watches_and_share_the_cores() -> None:
    run = replace(RUN, up=Up(ranks=3))
    processes = place(run, FOLDER, "unix:///s", environment={}, cores=16)
    training = [process for process in processes if process.service == "training"]
    assert [process.instance for process in training] == ["training-0"]
    launch = (sys.executable, "-m", "services.up.launch", "3", sys.executable, "-m", "services.cli")
    assert training[0].argv[:7] == launch
    assert training[0].argv[7:] == ("training", "runs/made/run.toml", "--instance", "training-0")
    assert processes[1].argv[:3] == (sys.executable, "-m", "services.cli")
    assert {process.environment["OMP_NUM_THREADS"] for process in processes} == {"4"}


def test_what_the_user_exported_is_kept() -> None:
    given = {"OMP_NUM_THREADS": "64", "HF_HUB_OFFLINE": "1", "HOME": "/root"}
    for process in place(RUN, FOLDER, "unix:///s", environment=given):
        assert process.environment == given | {
            "SLUICE_REDIS": "unix:///s",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }


def test_a_password_stands_in_no_argument_that_others_could_read() -> None:
    for process in place(RUN, FOLDER, "redis://me:secret@host:1/0"):
        assert not any("secret" in word for word in process.argv)


def test_a_password_stands_in_no_file_of_the_run(tmp_path: Path) -> None:
    claimed = claim(replace(RUN, bus=Bus(url="redis://me:secret@host:1/0")), tmp_path)
    assert "secret" not in (claimed.folder / "run.toml").read_text()
    assert config.load(claimed.folder / "run.toml") == claimed.run


def test_the_evaluation_needs_no_server() -> None:
    argv = evaluation(RUN, FOLDER, environment={}).argv
    assert argv[1:] == ("-m", "services.cli", "evaluate", "runs/made/run.toml")


def test_a_service_may_have_an_interpreter_of_its_own_and_the_engines_one_grades() -> None:
    run = replace(
        RUN, up=Up(python={"inference": "other/python", "training": "third/python"}, ranks=2)
    )
    first = {p.service: p.argv[0] for p in place(run, FOLDER, "unix:///s")}
    assert first == {
        "training": "third/python",
        "inference": "other/python",
        "scoring": sys.executable,
        "prompting": sys.executable,
    }
    assert evaluation(run, FOLDER, environment={}).argv[0] == "other/python"


def test_a_run_that_ended_keeps_its_folder_and_the_next_gets_a_number(tmp_path: Path) -> None:
    first = claim(RUN, tmp_path)
    mark_ended(first.folder)
    second = claim(RUN, tmp_path)
    assert (first.run.name, second.run.name) == ("made", "made-2")
    assert (first.folder.name, second.folder.name) == ("made", "made-2")
    assert config.load(second.folder / "run.toml") == second.run


def test_a_name_as_long_as_names_may_be_still_gets_a_number(tmp_path: Path) -> None:
    long = replace(RUN, name="n" * 64)
    mark_ended(claim(long, tmp_path).folder)
    assert claim(long, tmp_path).run.name == "n" * 62 + "-2"


def test_a_run_that_is_alive_is_not_started_twice(tmp_path: Path) -> None:
    claimed = claim(RUN, tmp_path)
    with pytest.raises(ConfigError, match="name = 'made': this run is alive"):
        claim(RUN, tmp_path)
    claimed.release()
    assert claim(RUN, tmp_path).run.name == "made"


def test_a_run_that_was_cut_short_goes_on_in_its_folder(tmp_path: Path) -> None:
    former = claim(RUN, tmp_path)
    (former.folder / "epochs" / "1").mkdir(parents=True)
    (former.folder / "valkey").mkdir()
    os.close(former.lock)
    claimed = claim(replace(RUN, steps=RUN.steps + 1), tmp_path)
    assert claimed.resumed and claimed.run.name == "made"
    assert (claimed.folder / "valkey").exists()
    assert config.load(claimed.folder / "run.toml").steps == RUN.steps + 1


def test_a_run_goes_on_under_the_keys_of_its_identity_alone(tmp_path: Path) -> None:
    former = claim(RUN, tmp_path)
    (former.folder / "epochs" / "1").mkdir(parents=True)
    os.close(former.lock)
    with pytest.raises(ConfigError, match=r"seed = '7': run made is not over, .* '0'"):
        claim(replace(RUN, seed=7), tmp_path)
    other = Training(backend={"use": "torch", "clip_norm": 0.5})
    with pytest.raises(ConfigError, match=r"^training\.backend = .*clip_norm.* is not over"):
        claim(replace(RUN, training=other), tmp_path)
    assert config.load(former.folder / "run.toml") == former.run, "and nothing was written"
    packs = Training(backend={"use": "torch", "chunk_elements": 99})
    assert claim(replace(RUN, training=packs), tmp_path).resumed


def test_a_run_that_never_had_a_trainer_begins_anew(tmp_path: Path) -> None:
    former = claim(RUN, tmp_path)
    (former.folder / "valkey").mkdir()
    os.close(former.lock)
    claimed = claim(replace(RUN, seed=7), tmp_path)
    assert not claimed.resumed and not (claimed.folder / "valkey").exists()


def test_a_folder_that_is_no_runs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        claim(RUN, tmp_path)
    assert (tmp_path / "made" / "thesis.tex").exists()


def test_a_folder_that_cannot_be_filled_is_one_line_and_stays_free(tmp_path: Path) -> None:
    logs = tmp_path / RUN.name / "logs"
    logs.parent.mkdir()
    logs.touch()
    with pytest.raises(ConfigError, match=r"cannot be written \(File exists\); make room"):
        claim(RUN, tmp_path)
    logs.unlink()
    assert not claim(RUN, tmp_path).resumed


def test_the_guard_remembers_who_was_not_reaped() -> None:
    assert guard.watched(["watch 7\n", "watch 8\n", "forget 7\n", "watch 9\n"]) == {8, 9}


def test_a_number_is_not_another_run_that_somebody_named_so(tmp_path: Path) -> None:
    mark_ended(claim(RUN, tmp_path).folder)
    os.close(claim(replace(RUN, name="made-2"), tmp_path).lock)
    assert claim(RUN, tmp_path).run.name == "made-3"
    assert claim(replace(RUN, name="made-2"), tmp_path).run.name == "made-2"


@pytest.mark.parametrize("kind", ["epochs", "steps", "checkpoints"])
def test_whatever_a_trainer_wrote_is_kept(tmp_path: Path, kind: str) -> None:
    former = claim(RUN, tmp_path)
    (former.folder / kind / "1").mkdir(parents=True)
    os.close(former.lock)
    claimed = claim(RUN, tmp_path)
    assert claimed.resumed and (claimed.folder / kind / "1").exists()

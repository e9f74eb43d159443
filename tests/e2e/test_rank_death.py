"""kill -9 of a trainer of two ranks, which goes on as two, as one, and as two again.

As in `test_trainer_death`: what is lost, what is trained twice, and where the weights have come to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from stream import read_report, write_run
from test_trainer_death import dying_up

from benchmarks.chaos import environment, recorded
from pipeline.bus.bus import Bus

pytestmark = pytest.mark.long

PROMPTS, MEMBERS, PER_STEP = 28, 4, 4
FAULTS = """\
after record 2
before commit 2
before checkpoints._put 2
"""
WORLDS = "2 2 1 2"
"""Ranks at each start: the second resumes two on two, and so on."""


def replayed(path: Path, ranks: int) -> list[str]:
    """What a replay on so many ranks says."""
    command = [sys.executable, "-m", "services.cli", "replay", str(path)]
    together = [sys.executable, "-m", "services.up.launch", str(ranks), *command]
    done = subprocess.run(
        together,
        cwd=path.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_ranks_that_are_killed_go_on_as_as_many_as_one_and_as_two(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    backend = {"use": "deepspeed", "stage": 3, "whole_elements": 0}
    path = write_run(
        tmp_path,
        prompts=PROMPTS,
        top={"name": run_name, "steps": 1000},
        bus={"lease_seconds": 5.0},
        groups={"members": MEMBERS, "per_step": PER_STEP},
        sampling={"max_tokens": 16, "temperature": 2.0},
        scoring={"scorers": ["benchmarks.rewards:by_hash"]},
        training={
            "backend": backend,
            "learning_rate": 1e-4,
            "pack_tokens": 512,
            "checkpoint_every": 1,
            "checkpoints_kept": 99,
        },
        up={"restarts": 20},
    )
    (tmp_path / "worlds").write_text(WORLDS)
    told = dying_up(tmp_path, path, FAULTS, server_url, str(tmp_path / "worlds"))
    assert told.returncode == 0, told.stdout + told.stderr
    assert not (tmp_path / "faults").read_text(), "every fault took place"

    bus = Bus.connect(server_url, run_name)
    state, ledger = bus.state(), bus.snapshot().ledger
    bus.purge()
    bus.close()
    assert state.batch == state.step == PROMPTS // PER_STEP
    assert ledger.keys() == {"generated", "trained"}, ledger
    folder = tmp_path / "runs" / run_name
    everything = {(f"{g:08d}", m): 1 for g in range(PROMPTS) for m in range(MEMBERS)}
    assert recorded(folder) == everything
    report = read_report(tmp_path, run_name)
    assert report["balanced"] and report["restarts"]["training-0"] == len(FAULTS.splitlines())

    marks = sorted((folder / "checkpoints").glob("*/checkpoint.json"))
    ranks = [json.loads(mark.read_text())["ranks"] for mark in marks]
    assert {1, 2} == {*ranks} and ranks[-1] == 2
    last = load_file(marks[-1].parent / "model" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in last.values())
    same = [line for line in replayed(path, 2) if "the same weights, bit for bit" in line]
    assert len(same) >= ranks.index(1), (
        "what two ranks made and were killed in follows from records"
    )

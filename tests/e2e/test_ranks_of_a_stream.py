"""A trainer of two processes in the whole stream."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stream import FAKE, ROOT, pid_of, read_report, start, write_run

from benchmarks.chaos import recorded
from pipeline.bus.bus import Bus
from pipeline.errors import SluiceError

pytestmark = pytest.mark.slow

RUN = FAKE | {
    "bus": {"lease_seconds": 5.0},
    "groups": {"members": 4, "per_step": 4},
    "sampling": {"max_tokens": 24},
    "training": {
        "backend": {"use": "deepspeed", "stage": 3, "whole_elements": 0},
        "learning_rate": 1e-4,
        "pack_tokens": 512,
        "checkpoint_every": 2,
    },
}


def followers(bus: Bus) -> list[psutil.Process]:
    """The ranks beside rank 0, once it has made a step."""
    deadline = time.monotonic() + 90
    while True:
        assert time.monotonic() < deadline, "no step within 90 s"
        time.sleep(0.1)
        try:
            if bus.state().step < 1 or (pid := pid_of(bus, "training")) is None:
                continue
        except SluiceError:
            continue
        return psutil.Process(pid).children()


def test_a_rank_that_is_killed_costs_a_restart_and_nothing_else(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    path = write_run(
        tmp_path, prompts=32, top={"name": run_name, "steps": 99}, up={"ranks": 2}, **RUN
    )
    up = start(tmp_path, "up", str(path), "--redis", server_url)
    bus = Bus.connect(server_url, run_name)
    (follower,) = followers(bus)
    follower.send_signal(signal.SIGKILL)
    out, err = up.communicate(timeout=110)
    assert up.returncode == 0, out + err
    report = read_report(tmp_path, run_name)
    assert report["restarts"] == {"training-0": 1} and report["balanced"]
    assert "rank 1 is gone" in out + err
    once = recorded(tmp_path / "runs" / run_name)
    assert len(once) == 32 * 4 and set(once.values()) == {1}
    assert not follower.is_running()
    bus.purge()


def node(folder: Path, path: Path, *options: str, url: str) -> subprocess.Popen[str]:
    """A machine's torchrun, with one rank of the trainer."""
    torchrun = ["-m", "torch.distributed.run", *options, "--nproc-per-node=1"]
    return subprocess.Popen(
        [sys.executable, *torchrun, "-m", "services.cli", "training", str(path)],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SLUICE_REDIS": url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_torchrun_starts_a_trainer_on_two_nodes(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    """Both on this machine, which has one folder of the run for both."""
    path = write_run(tmp_path, prompts=16, top={"name": run_name, "steps": 99}, **RUN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    nodes = [node(tmp_path, path, *meet, f"--node-rank={n}", url=server_url) for n in (0, 1)]
    others = [
        start(tmp_path, name, str(path), "--redis", server_url)
        for name in ("prompting", "inference", "scoring")
    ]
    try:
        for training in nodes:
            out, _ = training.communicate(timeout=110)
            assert training.returncode == 0, out
        assert Bus.connect(server_url, run_name).state().step == 4
        ranks = {cargo.suffix for cargo in (tmp_path / "runs" / run_name / "steps").glob("*.r*")}
        assert ranks == {".r0", ".r1"}, "each rank has read and recorded a part of the cargo"
    finally:
        for process in (*others, *nodes):
            process.kill()
            process.communicate()

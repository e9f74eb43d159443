"""One rank that is gone ends the others, soon and by name. Real processes, without torchrun's help.

torchrun kills a job of which one process has died; on several machines, or with one that hangs,
that is of no use.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from rank_cases import settings

from pipeline.errors import ConfigError
from pipeline.run import Training
from services.training.ranks import check

pytestmark = pytest.mark.timeout(300)

JOB = Path(__file__).with_name("rank_of_a_job.py")
ROOT = JOB.parents[2]
FOR_EVER = "1000"

Job = list["subprocess.Popen[str]"]


@contextmanager
def job(size: int, *arguments: str) -> Iterator[Job]:
    """So many ranks, killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_start(rank, size, port, arguments) for rank in range(size)]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def _start(rank: int, size: int, port: int, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(JOB.parent)]),
    }
    return subprocess.Popen(
        [sys.executable, str(JOB), *arguments],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_line(ranks: Job, line: str) -> None:
    """The next one of rank 0 that is this."""
    assert ranks[0].stdout is not None
    assert f"{line}\n" in iter(ranks[0].stdout.readline, ""), "rank 0 has ended"


def last_words(process: "subprocess.Popen[str]") -> str:
    """Of a process that ends by itself within two leases and a bit."""
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert time.monotonic() - began < 25
    return [line for line in errors.splitlines() if line.startswith("sluice: ")][-1]


def test_ranks_of_a_back_end_that_is_one_process_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = settings(pack_tokens=99)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check(run)
    with pytest.raises(ConfigError, match=r"training.backend = 'torch': is one process, .* of 2;"):
        check(replace(run, training=Training()))


def test_a_rank_that_is_killed_in_a_step_is_named_by_all_others() -> None:
    with job(3, "cispo", "0") as ranks:
        await_line(ranks, "step")
        ranks[2].kill()
        for other in ranks[:2]:
            assert last_words(other).startswith("sluice: rank 2 is gone: it died or hangs")


def test_a_rank_that_hangs_while_rank_0_waits_for_groups_is_named() -> None:
    with job(2, "cispo", FOR_EVER) as ranks:
        await_line(ranks, "step")
        ranks[1].send_signal(signal.SIGSTOP)
        assert last_words(ranks[0]).startswith("sluice: rank 1 is gone: it died or hangs")


def test_ranks_that_follow_end_with_rank_0_alone_and_not_by_a_signal() -> None:
    with job(2, "cispo", "0") as ranks:
        await_line(ranks, "step")
        for sign in (signal.SIGTERM, signal.SIGINT):
            ranks[1].send_signal(sign)
        for _ in range(3):
            await_line(ranks, "step")
        assert ranks[1].poll() is None
        ranks[0].kill()
        assert "rank 0 is gone" in last_words(ranks[1])


def test_what_fails_on_one_rank_is_told_by_rank_0_in_one_line() -> None:
    with job(2, "failing", "0") as ranks:
        await_line(ranks, "ready")
        words = "sluice: rank 1 failed: ValueError: a mistake of the user's"
        assert last_words(ranks[0]) == words

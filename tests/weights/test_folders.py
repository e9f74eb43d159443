"""Folders in shared memory: whose they are, and when they go."""

import gc
import multiprocessing
import signal
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch

from pipeline.weights.folders import sweep
from pipeline.weights.shm import ShmTransport


def send_and_sleep(folder: Path, run: str, told: "SimpleQueue[str]") -> None:
    transport = ShmTransport(folder=str(folder), run=run)
    told.put(transport.send(4, [("a", torch.ones(3))], epoch=1))
    signal.pause()


def test_left_overs_go_whosever_run_they_are_if_their_sender_is_dead_and_nothing_else(
    tmp_path: Path,
) -> None:
    fork = multiprocessing.get_context("fork")

    def start(run: str) -> tuple[BaseProcess, Path]:
        told = fork.SimpleQueue()
        process = fork.Process(target=send_and_sleep, args=(tmp_path, run, told), daemon=True)
        process.start()
        return process, Path(told.get())

    def kill(senders: list[tuple[BaseProcess, Path]]) -> list[Path]:
        for process, _ in senders:
            process.kill()
            process.join()
        return [path for _, path in senders]

    running, dying = ([start(run) for run in runs] for runs in (("demo", "x.y"), ("demo", "old")))
    left = kill(dying)
    others = [tmp_path / name for name in ("sluice-abcdef", "sluice-a.b", "other.0123456789ab")]
    for folder in others:
        folder.mkdir()
    (tmp_path / "sluice-file.0123456789ab").write_bytes(b"")
    transport = ShmTransport(folder=str(tmp_path), run="demo")
    assert all(path.exists() for path in left), "opening one removes nothing: engines open one too"
    mine = Path(transport.send(1, [("a", torch.ones(1))], epoch=1))
    assert not any(path.parent.exists() for path in left)
    assert all(path.exists() for path in (mine, *others, *(path for _, path in running)))
    assert (tmp_path / "sluice-file.0123456789ab").exists()
    transport.close()
    assert not mine.parent.exists()
    kill(running)
    assert sweep(tmp_path) == 2


def test_a_sender_that_ends_in_order_leaves_nothing_and_its_forks_take_nothing(
    tmp_path: Path,
) -> None:
    transport = ShmTransport(folder=str(tmp_path), run="run")
    location = Path(transport.send(1, [("a", torch.ones(1))], epoch=1))
    fork = multiprocessing.get_context("fork").Process(target=transport.close)
    fork.start()
    fork.join()
    assert fork.exitcode == 0 and location.exists()
    del transport, fork
    gc.collect()
    assert list(tmp_path.iterdir()) == []

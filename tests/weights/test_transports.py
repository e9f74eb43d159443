import gc
import multiprocessing
import os
import signal
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
from tied import manifest_of
from torch import Tensor

from pipeline.errors import WeightsError
from pipeline.weights.folders import sweep
from pipeline.weights.shm import ShmTransport


def send_and_sleep(folder: Path, run: str, told: "SimpleQueue[str]") -> None:
    transport = ShmTransport(folder=str(folder), run=run)
    told.put(transport.send(4, [("a", torch.ones(3))]))
    signal.pause()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_round_trip_is_exact_to_the_bit(
    transport: ShmTransport, tensors: dict[str, Tensor], dtype: torch.dtype
) -> None:
    sent = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    location = transport.send(1, sent.items())
    received = dict(transport.receive(manifest_of(sent, version=1, location=location)))
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == dtype
        assert torch.equal(received[name], tensor)


def test_a_readers_tensors_survive_drop(
    transport: ShmTransport, tensors: dict[str, Tensor]
) -> None:
    location = transport.send(1, tensors.items())
    stream = transport.receive(manifest_of(tensors, version=1, location=location))
    first = dict([next(stream)])
    transport.drop(1)
    assert not Path(location).exists()
    received = {**first, **dict(stream)}
    assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())


def test_received_tensors_are_aligned_as_torchs_own(transport: ShmTransport) -> None:
    """Kernels may round otherwise on another alignment: a flip must not change a bit."""
    sent = {"a": torch.ones(3), "b": torch.ones(5), "c": torch.ones(7)}
    location = transport.send(1, sent.items())
    for _, tensor in transport.receive(manifest_of(sent, version=1, location=location)):
        assert tensor.data_ptr() % 64 == 0


def test_the_newest_two_versions_stay(transport: ShmTransport) -> None:
    paths = [Path(transport.send(version, [("a", torch.ones(1))])) for version in (1, 2, 5)]
    assert [path.exists() for path in paths] == [False, True, True]


def test_C039_a_send_that_fails_leaves_nothing_and_the_former_version_alone(
    transport: ShmTransport,
) -> None:
    former = Path(transport.send(1, [("a", torch.ones(1))]))
    blocked = former.with_name("v2.safetensors")
    blocked.mkdir()
    with pytest.raises(WeightsError, match="version 2 cannot be written"):
        transport.send(2, [("a", torch.ones(4))])
    assert {path.name for path in former.parent.iterdir()} == {former.name, blocked.name}


@pytest.mark.parametrize("damage", ["gone", "truncated", "garbage"])
def test_a_damaged_file_is_refused_by_name(transport: ShmTransport, damage: str) -> None:
    sent = {"a": torch.ones(100)}
    location = transport.send(1, sent.items())
    if damage == "gone":
        transport.drop(1)
    elif damage == "truncated":
        os.truncate(location, 200)
    else:
        Path(location).write_bytes(b"\xff" * 500)
    with pytest.raises(WeightsError, match=r"version 1 cannot be read from .*v1\.safetensors"):
        dict(transport.receive(manifest_of(sent, version=1, location=location)))


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
    mine = Path(transport.send(1, [("a", torch.ones(1))]))
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
    location = Path(transport.send(1, [("a", torch.ones(1))]))
    fork = multiprocessing.get_context("fork").Process(target=transport.close)
    fork.start()
    fork.join()
    assert fork.exitcode == 0 and location.exists()
    del transport, fork
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_runs_name_stays_within_the_folder(tmp_path: Path) -> None:
    transport = ShmTransport(folder=str(tmp_path), run="../a/b")
    assert tmp_path in Path(transport.send(1, [("a", torch.ones(1))])).resolve().parents

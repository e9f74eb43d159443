"""What every transport of versions does when all goes well; faults are in test_faults."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cargo import Cargo
from receiver import published, same
from tied import manifest_of
from torch import Tensor

from pipeline.messages import Manifest
from pipeline.protocols import Transport
from pipeline.weights.files import FilesTransport
from pipeline.weights.shm import ShmTransport

Open = Callable[[Path], Transport]
CargoOf = Callable[[Manifest], Cargo]


def sent(transport: Transport, version: int, tensors: dict[str, Tensor]) -> Manifest:
    location = transport.send(version, tensors.items(), epoch=1)
    return manifest_of(tensors, version=version, location=location)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_round_trip_to_another_process_is_exact_to_the_bit(
    opened: Open, tmp_path: Path, tensors: dict[str, Tensor], dtype: torch.dtype
) -> None:
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    manifest = sent(opened(tmp_path), 1, cast)
    received = dict(opened(tmp_path).receive(manifest))
    assert received.keys() == cast.keys()
    for name, tensor in cast.items():
        assert received[name].dtype == dtype
        assert torch.equal(received[name], tensor)


ODD = {
    "of no elements": torch.empty(0, 3),
    "scalar": torch.tensor(1.5),
    "scalar of integers": torch.tensor(7),
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "strided": torch.arange(20.0)[::3],
    "expanded": torch.ones(1, 3).expand(4, 3),
    "bfloat16": torch.randn(5).bfloat16(),
    "float16": torch.randn(3).half(),
    "booleans": torch.tensor([True, False]),
    "a part of a larger one": torch.arange(10.0)[3:5],
}


@pytest.mark.parametrize("named", [*({n: t} for n, t in ODD.items()), ODD], ids=[*ODD, "all"])
def test_every_kind_of_tensor_travels(
    opened: Open, tmp_path: Path, named: dict[str, Tensor]
) -> None:
    for send in (sent, lambda to, version, tensors: published(to, version, tensors.items())):
        manifest = send(opened(tmp_path), 1, named)
        received = dict(opened(tmp_path).receive(manifest))
        assert received.keys() == named.keys()
        for name, tensor in named.items():
            assert (received[name].dtype, received[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(received[name], tensor)
        assert manifest_of(received, version=1, location="").fingerprint == manifest.fingerprint


def test_a_tensor_that_is_sent_does_not_change_with_the_senders(transport: Transport) -> None:
    weight = torch.ones(3)
    manifest = sent(transport, 1, {"a": weight})
    weight.add_(1)
    assert torch.equal(dict(transport.receive(manifest))["a"], torch.ones(3))


def test_what_was_received_survives_what_was_sent(
    transport: Transport, cargo: CargoOf, tensors: dict[str, Tensor]
) -> None:
    manifest = sent(transport, 1, tensors)
    received = dict(transport.receive(manifest))
    transport.drop(1)
    cargo(manifest).write(b"\xff" * 500)
    assert all(torch.equal(received[name], tensor) for name, tensor in tensors.items())


def test_received_tensors_are_aligned_as_torchs_own(transport: Transport) -> None:
    """Kernels may round otherwise on another alignment: a flip must not change a bit."""
    manifest = sent(transport, 1, {"a": torch.ones(3), "b": torch.ones(5), "c": torch.ones(7)})
    for _, tensor in transport.receive(manifest):
        assert tensor.data_ptr() % 64 == 0


def test_the_newest_two_versions_stay_and_no_others_for_long(
    transport: Transport, lying: Callable[[Path], set[str]], tmp_path: Path, kind: str
) -> None:
    """Whoever joins finds them; a patch stays as long as one of the two needs it."""
    numbers = [1, 2, 5, 6, 8, 9, 10, 11]
    values = {version: {"a": torch.full((64,), float(version))} for version in numbers}
    manifests = {1: sent(transport, 1, values[1])}
    for former, version in itertools.pairwise(numbers):
        manifests[version] = sent(transport, version, values[version])
        for newest in (former, version):
            received = dict(transport.receive(manifests[newest]))
            assert same(received, values[newest])
        if not kind.endswith("patches"):
            assert lying(tmp_path) == {f"v{former}.e1", f"v{version}.e1"}
    assert not {"v1.e1", "v2.e1"} & lying(tmp_path)


def test_a_version_may_be_sent_again(transport: Transport) -> None:
    for value in (1.0, 2.0):
        manifest = sent(transport, 3, {"a": torch.full((2,), value)})
        assert torch.equal(dict(transport.receive(manifest))["a"], torch.full((2,), value))


@pytest.mark.parametrize("kind", ["shm", "files"])
def test_other_users_may_read_a_version_if_they_may_enter_its_folder(transport: Transport) -> None:
    """An engine may be another user's; what a library makes for itself alone would lock it out."""
    path = Path(sent(transport, 1, {"a": torch.ones(1)}).location)
    assert path.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("made", [ShmTransport, FilesTransport])
def test_a_runs_name_stays_within_the_folder(
    made: Callable[..., Transport], tmp_path: Path
) -> None:
    other = made(folder=str(tmp_path), run="../a/b")
    path = Path(other.send(1, [("a", torch.ones(1))], epoch=1))
    assert tmp_path in path.resolve().parents

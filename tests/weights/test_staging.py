import threading
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest
import torch
from cargo import Cargo
from tied import manifest_of
from torch import Tensor

from pipeline.messages import Manifest
from pipeline.protocols import Held, Transport
from pipeline.weights.staging import Expected, Staging

Tensors = dict[str, Tensor]


def stage(staging: Staging, manifest: Manifest, transport: Transport) -> None:
    staging.begin(manifest, transport)
    assert staging.wait(20)


def test_a_whole_version_is_staged_once(
    transport: Transport, tensors: Tensors, expected: Expected
) -> None:
    staging = Staging(expected)
    location = transport.send(1, tensors.items(), epoch=1)
    stage(staging, manifest_of(tensors, version=1, location=location), transport)
    staged = staging.take()
    assert staged is not None and staged.version == 1 and staging.error() is None
    assert all(torch.equal(staged.tensors[name], tensor) for name, tensor in tensors.items())
    assert staging.take() is None


def test_a_staged_version_tells_what_it_took(
    transport: Transport, tensors: Tensors, expected: Expected
) -> None:
    staging = Staging(expected)
    location = transport.send(1, tensors.items(), epoch=1)
    stage(staging, manifest_of(tensors, version=1, location=location), transport)
    staged = staging.take()
    assert staged is not None
    assert staged.cost.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert 0 < staged.cost.verify_seconds < staged.cost.seconds


def test_what_is_staged_lies_where_the_live_parameters_do(
    transport: Transport, tensors: Tensors, expected: Expected
) -> None:
    staging = Staging(expected, device=torch.device("meta"))
    location = transport.send(1, tensors.items(), epoch=1)
    stage(staging, manifest_of(tensors, version=1, location=location), transport)
    staged = staging.take()
    assert staged is not None, staging.error()
    assert {tensor.device.type for tensor in staged.tensors.values()} == {"meta"}


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_C039_a_damaged_file_is_named_and_the_same_version_can_be_tried_again(
    transport: Transport,
    cargo: Callable[[Manifest], Cargo],
    tensors: Tensors,
    expected: Expected,
    damage: str,
) -> None:
    staging = Staging(expected)
    location = transport.send(1, tensors.items(), epoch=1)
    manifest = manifest_of(tensors, version=1, location=location)
    found = cargo(manifest)
    whole = found.read()
    if damage == "gone":
        found.remove()
    else:
        found.write(whole[: len(whole) // 2])
    stage(staging, manifest, transport)
    assert staging.take() is None
    assert "v1.e1" in (staging.error() or "")
    found.write(whole)
    stage(staging, manifest, transport)
    assert staging.take() is not None


def test_a_manifest_whose_fingerprint_is_not_that_of_its_tensors_is_refused(
    transport: Transport, tensors: Tensors, expected: Expected
) -> None:
    staging = Staging(expected)
    location = transport.send(1, tensors.items(), epoch=1)
    manifest = manifest_of(tensors, version=1, location=location)
    stage(staging, msgspec.structs.replace(manifest, fingerprint="0" * 32), transport)
    assert staging.take() is None
    assert "fingerprint" in (staging.error() or "")


class Gated:
    """Hands out its tensors once its gate is open; then, if told so, fails as a driver might."""

    def __init__(self, tensors: Tensors, fail: bool = False) -> None:
        self.tensors, self.fail = tensors, fail
        self.entered, self.gate = threading.Event(), threading.Event()

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        raise NotImplementedError

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        for number, pair in enumerate(self.tensors.items()):
            if number == 2:
                self.entered.set()
                assert self.gate.wait(20)
                if self.fail:
                    raise ConnectionResetError("peer is gone")
            yield pair

    def drop(self, version: int) -> None:
        raise NotImplementedError


def test_C027_a_failure_half_way_shows_nothing(tensors: Tensors, expected: Expected) -> None:
    staging, transport = Staging(expected), Gated(tensors, fail=True)
    staging.begin(manifest_of(tensors, version=1, location=""), transport)
    assert transport.entered.wait(20)
    assert staging.take() is None and staging.error() is None
    transport.gate.set()
    assert staging.wait(20)
    assert staging.take() is None
    assert staging.error() == "version 1 not staged: ConnectionResetError: peer is gone"


@pytest.mark.parametrize("fail", [False, True])
def test_a_newer_version_wins_over_one_that_is_being_received(
    tensors: Tensors, expected: Expected, fail: bool
) -> None:
    staging = Staging(expected)
    slow, fast = Gated(tensors, fail=fail), Gated(tensors)
    fast.gate.set()
    staging.begin(manifest_of(tensors, version=1, location=""), slow)
    assert slow.entered.wait(20)
    before = set(threading.enumerate())
    staging.begin(manifest_of(tensors, version=2, location=""), fast)
    assert staging.wait(20)
    slow.gate.set()
    for thread in before - {threading.current_thread()}:
        if thread.name == "staging":
            thread.join(20)
    staged = staging.take()
    assert staged is not None and staged.version == 2
    assert staging.take() is None and staging.error() is None


def test_an_older_version_never_replaces_a_newer_one(tensors: Tensors, expected: Expected) -> None:
    staging, open_ = Staging(expected), Gated(tensors)
    open_.gate.set()
    for version in (3, 2):
        staging.begin(manifest_of(tensors, version=version, location=""), open_)
        assert staging.wait(20)
    staged = staging.take()
    assert staged is not None and staged.version == 3

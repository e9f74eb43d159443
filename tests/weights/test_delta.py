"""Only what changed travels: bit for bit the same, by the way that takes the fewest bytes."""

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from receiver import Receiver, published, same
from tied import Tied, manifest_of
from torch import Tensor, nn

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import Held
from pipeline.weights.delta import Delta
from pipeline.weights.files import FilesTransport, build
from pipeline.weights.staging import Staging

Tensors = dict[str, Tensor]
READ: list[str] = []


class Watched(FilesTransport):
    """Notes what is fetched: `v1` for a version, `+v2` for a patch."""

    def _read(self, location: str) -> Iterator[tuple[str, Tensor]]:
        READ.append(("+" if "/patches/" in location else "") + Path(location).name.split(".")[0])
        yield from super()._read(location)


@pytest.fixture
def delta(tmp_path: Path) -> Delta:
    READ.clear()
    return Delta(partial(Watched, folder=str(tmp_path), run="run"), 5)


def values(version: int) -> Tensors:
    """Of which a few elements are their version's."""
    torch.manual_seed(0)
    big = torch.randn(4000)
    big[: 10 * version] = version
    return {"big": big, "still": torch.ones(50)}


def sent(delta: Delta, version: int, tensors: Tensors | None = None, epoch: int = 1) -> Manifest:
    return published(delta, version, (tensors or values(version)).items(), epoch=epoch)


def held(manifest: Manifest, version: int | None = None) -> Held:
    version = manifest.version if version is None else version
    return Held(manifest.version, manifest.fingerprint, values(version))


def received(delta: Delta, manifest: Manifest, has: Held | None = None) -> list[str]:
    """What was fetched for it; the result is the version in any case."""
    READ.clear()
    assert same(dict(delta.receive(manifest, has)), values(manifest.version))
    return READ


def test_who_holds_the_version_before_fetches_the_patch_alone(delta: Delta) -> None:
    first, second = sent(delta, 1), sent(delta, 2)
    assert received(delta, second, held(first)) == ["+v2"]


def test_who_missed_three_fetches_the_patches_since(delta: Delta) -> None:
    first = sent(delta, 1)
    newest = [sent(delta, version) for version in (2, 3, 4, 5)][-1]
    assert received(delta, newest, held(first)) == ["+v2", "+v3", "+v4", "+v5"]


def test_who_holds_nothing_fetches_the_last_whole_version_and_the_patches_since(
    delta: Delta,
) -> None:
    manifests = [sent(delta, version) for version in range(1, 9)]
    assert received(delta, manifests[3]) == ["v1", "+v2", "+v3", "+v4"]
    assert received(delta, manifests[5]) == ["v6"]
    assert received(delta, manifests[7]) == ["v6", "+v7", "+v8"]


def test_a_whole_version_between_is_no_reason_to_fetch_it(delta: Delta) -> None:
    manifests = [sent(delta, version) for version in range(1, 9)]
    assert received(delta, manifests[7], held(manifests[2])) == [f"+v{v}" for v in range(4, 9)]


def test_what_is_held_must_be_that_very_version(delta: Delta) -> None:
    """Another trainer's version of this number, or one that was never sent."""
    first, second = sent(delta, 1), sent(delta, 2)
    other = Held(1, "another fingerprint", values(1))
    assert received(delta, second, other) == ["v1", "+v2"]
    assert received(delta, second, Held(0, first.fingerprint, values(1))) == ["v1", "+v2"]


def test_patches_that_are_larger_than_all_of_it_are_not_fetched_one_by_one(delta: Delta) -> None:
    """In float32 nearly every element changes: then every other version travels whole."""
    torch.manual_seed(1)
    tensors = {version: {"a": torch.randn(4000)} for version in range(1, 6)}
    manifests = {version: sent(delta, version, tensors[version]) for version in tensors}
    routes = {version: json.loads(m.location)["version"] for version, m in manifests.items()}
    assert routes == {1: 1, 2: 1, 3: 3, 4: 3, 5: 5}
    has = {v: Held(v, manifests[v].fingerprint, tensors[v]) for v in tensors}
    for former, version in ((1, 5), (3, 5), (4, 5)):
        READ.clear()
        assert same(dict(delta.receive(manifests[version], has[former])), tensors[version])
        assert [*READ] == (["+v5"] if former == 4 else ["v5"])


def test_what_did_not_change_is_yielded_as_it_is_held_and_the_rest_is_a_copy(delta: Delta) -> None:
    has = held(sent(delta, 1))
    result = dict(delta.receive(sent(delta, 2), has))
    assert result["still"] is has.tensors["still"]
    assert result["big"] is not has.tensors["big"]
    assert same(dict(has.tensors), values(1)), "the live tensors are as they were"


def test_a_version_that_changes_nothing_can_be_sent_too(delta: Delta) -> None:
    first = sent(delta, 1)
    second = sent(delta, 2, values(1))
    assert same(dict(delta.receive(second, held(first))), values(1))


OTHERS: dict[str, Tensors] = {
    "another shape": {**values(2), "still": torch.ones(51)},
    "another dtype": {**values(2), "still": torch.ones(50).half()},
    "one more": {**values(2), "new": torch.ones(2)},
    "one less": {"big": values(2)["big"]},
}


@pytest.mark.parametrize("tensors", OTHERS.values(), ids=OTHERS)
def test_other_tensors_travel_whole(delta: Delta, tensors: Tensors) -> None:
    first = sent(delta, 1)
    second = sent(delta, 2, tensors)
    READ.clear()
    assert same(dict(delta.receive(second, held(first))), tensors)
    assert READ == ["v2"]


def test_a_version_that_is_sent_again_travels_whole(delta: Delta) -> None:
    sent(delta, 1)
    sent(delta, 2)
    assert received(delta, sent(delta, 2)) == ["v2"]


@pytest.mark.parametrize("gone", ["v1.e1.safetensors", "patches/v2.e1.safetensors"])
def test_once_something_is_gone_the_next_version_travels_whole(
    delta: Delta, tmp_path: Path, gone: str
) -> None:
    sent(delta, 1)
    sent(delta, 2)
    (tmp_path / "run" / gone).unlink()
    assert received(delta, sent(delta, 3)) == ["v3"]


def test_a_version_that_could_not_be_sent_is_no_base(delta: Delta, tmp_path: Path) -> None:
    first = sent(delta, 1)
    sent(delta, 2)
    in_the_way = tmp_path / "run" / "patches" / "v3.e1.safetensors"
    in_the_way.mkdir()
    with pytest.raises(WeightsError, match="version 3 cannot be written"):
        sent(delta, 3)
    in_the_way.rmdir()
    assert received(delta, sent(delta, 4), held(first)) == ["+v2", "+v4"]


def test_a_trainer_that_follows_begins_whole_and_leaves_the_newest_two(tmp_path: Path) -> None:
    make = partial(FilesTransport, folder=str(tmp_path), run="run")
    former, follows = Delta(make, 3), Delta(make, 3)
    manifests = [sent(former, version) for version in range(1, 6)]
    newest = sent(follows, 6, epoch=2)
    assert json.loads(newest.location)["version"] == 6
    for manifest in (manifests[4], newest):
        assert same(dict(follows.receive(manifest)), values(manifest.version))
    for version in range(7, 16):
        sent(follows, version, epoch=2)
    left = {path.name.split(".")[1] for path in tmp_path.rglob("v*")}
    assert left == {"e2"}


def test_patches_are_bounded_in_number_and_in_bytes(tmp_path: Path) -> None:
    delta = Delta(partial(FilesTransport, folder=str(tmp_path), run="run"), 4)
    for version in range(1, 40):
        sent(delta, version)
        assert len([*tmp_path.rglob("patches/v*")]) <= 8
    assert len([*(tmp_path / "run").glob("v*")]) == 2


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(96, 96)
        self.norm = nn.LayerNorm(96)


def test_thirty_versions_of_a_training_in_bfloat16_are_exact_to_the_bit(tmp_path: Path) -> None:
    """One that follows, one that misses three at a time, and one that joins in their midst."""
    torch.manual_seed(0)
    delta = Delta(partial(Watched, folder=str(tmp_path), run="run"), 8)
    masters = Policy()
    engines = {name: Receiver(Policy().bfloat16(), delta) for name in ("follows", "misses three")}
    for version in range(1, 31):
        with torch.no_grad():
            for parameter in masters.parameters():  # as far as Adam goes, at this learning rate
                parameter.add_(1e-5 * torch.randn(parameter.shape).sign())
        named = [*masters.named_parameters()]
        manifest = published(delta, version, named, dtype=torch.bfloat16)
        right = {name: tensor.detach().bfloat16() for name, tensor in named}
        if version == 15:
            engines["joins"] = Receiver(Policy().bfloat16(), delta)
        for name, engine in engines.items():
            if name != "misses three" or version % 4 == 2:
                READ.clear()
                assert engine.follow(manifest) == ""
                assert same(engine.values(), right)
                assert engine.live.fingerprint() == manifest.fingerprint
                if name == "follows" and version > 1:
                    assert [*READ] == [f"+v{version}"], "its live tensors are what it holds"
    stations = json.loads(manifest.location)["stations"]
    full = sum(tensor.nbytes for tensor in right.values())
    assert all(0 < size < 0.2 * full for *_, size in stations[1:])


def test_a_transport_that_sends_no_patches_is_told_from_one_that_does(tmp_path: Path) -> None:
    plain, patches = (build(folder=str(tmp_path), whole_every=n, run="run") for n in (1, 5))
    manifest = published(plain, 1, Tied().named_parameters())
    assert "the trainer sends no patches" in Receiver(Tied(), patches).follow(manifest)
    error = Receiver(Tied(), plain).follow(published(patches, 2, Tied().named_parameters()))
    assert "version 2 cannot be read from" in error


class Telling:
    """A transport that notes what a receiver holds."""

    def __init__(self) -> None:
        self.held: list[Held | None] = []
        self.tensors = {"a": torch.ones(2)}

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[Any]:
        self.held.append(held)
        yield from self.tensors.items()


def test_a_receiver_whose_parameters_are_elsewhere_keeps_what_it_received_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    telling = Telling()
    staging = Staging({"a": (torch.float32, (2,))}, keep=True)
    assert "kept for patches" in caplog.text
    for version in (1, 2):
        staging.begin(manifest_of(telling.tensors, version=version, location=""), telling)  # type: ignore[arg-type]
        assert staging.wait(20) and staging.take()
    first, second = telling.held
    assert first is None and second is not None
    assert (second.version, second.tensors) == (1, telling.tensors)


def test_what_failed_is_tried_again_from_nothing() -> None:
    """What is held may be what is wrong."""
    telling = Telling()
    right = manifest_of(telling.tensors, version=1, location="")
    has = Held(0, "", telling.tensors)
    staging = Staging({"a": (torch.float32, (2,))}, held=lambda: has)
    telling.tensors = {"a": torch.zeros(2)}
    for _ in range(2):
        staging.begin(right, telling)  # type: ignore[arg-type]
        assert staging.wait(20) and "checksum" in (staging.error() or "")
    assert telling.held == [has, None]

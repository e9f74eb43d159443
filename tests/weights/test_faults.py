"""Every fault, in every phase, of every transport: the old version serves whole, the fault is
named, and the next version is served as if nothing had been."""

import multiprocessing
import os
import re
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
from cargo import Cargo
from kinds import KINDS, WHOLE_EVERY
from receiver import SECONDS, Receiver, published, same
from tied import Tied, manifest_of
from torch import Tensor

from pipeline.errors import WeightsError
from pipeline.messages import Manifest
from pipeline.protocols import Transport
from pipeline.weights.delta import Delta

Tensors = dict[str, Tensor]
Open = Callable[[Path], Transport]
CargoOf = Callable[[Manifest], Cargo]
Lying = Callable[[Path], set[str]]
fork = multiprocessing.get_context("fork")


def made(value: float) -> Tensors:
    return {name: torch.full_like(p, value).detach() for name, p in Tied().named_parameters()}


@pytest.fixture
def serving(transport: Transport) -> Receiver:
    """An engine that serves version 1."""
    receiver = Receiver(Tied(), transport)
    assert receiver.follow(published(transport, 1, made(1.0).items())) == ""
    return receiver


def serves(receiver: Receiver, version: int) -> bool:
    """Whole: every tensor is that version's, and an output layer is still the embedding."""
    model = receiver.model
    assert isinstance(model, Tied) and model.head.weight is model.embed.weight
    return receiver.live.version == version and same(receiver.values(), made(float(version)))


# At rest: what may lie there once the version was announced.


def never_filled(raw: bytes) -> bytes:
    """The names are there, and zeros where the bytes should be."""
    start = 8 + int.from_bytes(raw[:8], "little")
    return raw[:start] + b"\0" * (len(raw) - start)


FILE = r"version 2 cannot be read from .*v2\.e1"
CONTENT_IS_WRONG = r"checksum|is damaged|is no patch"
AT_REST: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "C039-truncated to nothing": (lambda raw: b"", FILE),
    "C039-truncated in its header": (lambda raw: raw[: len(raw) // 10], FILE),
    "C039-truncated in half": (lambda raw: raw[: len(raw) * 7 // 10], FILE),
    "C039-one byte short": (lambda raw: raw[:-1], FILE),
    "C039-too long": (lambda raw: raw + b"\0" * 8, FILE),
    "C039-garbage": (lambda raw: b"\xff" * 500, FILE),
    "C025-acknowledged and never filled": (never_filled, CONTENT_IS_WRONG),
}


@pytest.mark.parametrize(("damage", "message"), AT_REST.values(), ids=AT_REST)
def test_a_version_that_is_damaged(
    serving: Receiver, cargo: CargoOf, damage: Callable[[bytes], bytes], message: str
) -> None:
    manifest = published(serving.transport, 2, made(2.0).items())
    found = cargo(manifest)
    found.write(damage(found.read()))
    refused(serving, manifest, message)


@pytest.mark.parametrize("case", ["C039-gone", "C025-another version's"])
def test_a_version_that_is_not_there(serving: Receiver, cargo: CargoOf, case: str) -> None:
    former = published(serving.transport, 2, made(1.5).items())
    manifest = published(serving.transport, 3, made(3.0).items())
    if case == "C039-gone":
        cargo(manifest).remove()
        message = r"version 3 cannot be read from .*v3\.e1"
    else:
        cargo(manifest).write(cargo(former).read())
        message = CONTENT_IS_WRONG
    refused(serving, manifest, message)


# What is in it, and whether the manifest says so.


def without(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "norm.bias"}


def with_bias(bias: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, "norm.bias": bias}


def one_more(tensors: Tensors) -> Tensors:
    return {**tensors, "norm.extra": torch.ones(2)}


CONTENT = {
    "C026-missing": (without, False, "norm.bias: not received"),
    "C026-missing, as announced": (without, True, "norm.bias: not announced"),
    "C026-unknown": (one_more, False, "norm.extra: unknown to this model"),
    "C026-unknown, as announced": (one_more, True, "norm.extra: unknown to this model"),
    "C026-shape": (with_bias(torch.ones(7)), True, r"norm.bias: shape \(7,\), expected \(6,\)"),
    "C043-dtype": (
        with_bias(torch.ones(6).half()),
        True,
        "norm.bias: dtype float16, expected float32",
    ),
    "C025-one bit": (with_bias(torch.full((6,), 2.0 + 2**-22)), False, "norm.bias: checksum"),
    "C026-NaN": (with_bias(torch.full((6,), torch.nan)), True, "norm.bias: not all values are fin"),
    "C026-infinite": (with_bias(torch.full((6,), torch.inf)), True, "norm.bias: not all values"),
}


@pytest.mark.parametrize(("fault", "told", "message"), CONTENT.values(), ids=CONTENT)
def test_a_fault_in_what_was_sent(
    serving: Receiver, fault: Callable[[Tensors], Tensors], told: bool, message: str
) -> None:
    right = made(2.0)
    location = serving.transport.send(2, fault(right).items(), epoch=1)
    announced = fault(right) if told else right
    refused(serving, manifest_of(announced, version=2, location=location), message)


def refused(serving: Receiver, manifest: Manifest, message: str) -> None:
    """By name, the old version serves, and the next one is served.

    Where patches travel the damage may be to one that others are based on: then it is the next
    version that travels whole, once a receiver has begun anew, as it does when it tries again.
    """
    error, version = serving.follow(manifest), manifest.version + 1
    assert error.startswith(f"version {manifest.version} not staged: ")
    assert re.search(message, error)
    assert serves(serving, 1)
    while error:
        newest = published(serving.transport, version, made(float(version)).items())
        error = serving.follow(newest)
        if error and isinstance(serving.transport, Delta):
            assert serves(serving, 1)
            error, version = serving.follow(newest), version + 1
        assert not error or version - manifest.version <= WHOLE_EVERY, error
    assert serves(serving, serving.live.version) and serving.live.version > manifest.version


# While it is received.


FAILS = {("C027-dropped", "redis")} | {
    ("C027-truncated", kind) for kind in ("shm", "files", "redis")
}
"""All others have all of it before they yield any, or have it open."""


@pytest.mark.parametrize("case", ["C027-dropped", "C027-truncated"])
def test_a_version_that_goes_while_it_is_read_kills_nobody(
    transport: Transport, cargo: CargoOf, kind: str, case: str
) -> None:
    """Where it is mapped, a read beyond its new end is a signal that ends the process."""
    big = {f"t{n}": torch.full((1 << 18,), float(n)) for n in range(3)}
    manifest = published(transport, 2, big.items())
    stream = transport.receive(manifest)
    received = dict([next(stream)])
    if case == "C027-dropped":
        transport.drop(2)
    else:
        cargo(manifest).cut()
    if (case, kind) in FAILS:
        with pytest.raises(WeightsError, match=FILE):
            dict(stream)
    else:
        assert same({**received, **dict(stream)}, big)


def test_C027_a_reader_that_falls_behind_sees_whole_versions_only(
    opened: Open, tmp_path: Path
) -> None:
    """Old versions are dropped under its hands, as fast as they can be sent."""
    sender, receiver = opened(tmp_path), Receiver(Tied(), opened(tmp_path))
    newest: list[Manifest] = []
    stop = threading.Event()

    def send() -> None:
        for version in range(1, 31):
            newest.append(published(sender, version, made(float(version)).items()))
        stop.set()

    thread = threading.Thread(target=send)
    thread.start()
    errors = []
    while not stop.is_set():
        if newest and newest[-1].version > receiver.live.version:
            errors.append(receiver.follow(newest[-1]))
            assert errors[-1] or serves(receiver, receiver.live.version)
    thread.join()
    assert all("cannot be read from" in error for error in errors if error)
    if receiver.live.version < 30:
        assert receiver.follow(newest[-1]) == ""
    assert serves(receiver, 30)


def test_C040_nobody_waits_for_the_other_side(opened: Open, tmp_path: Path) -> None:
    """A sender that nobody reads, or that one reads who stopped in the midst of it; and a reader
    whose version never comes: both end, by name."""
    started = time.monotonic()
    sender, receiver = opened(tmp_path), Receiver(Tied(), opened(tmp_path))
    hung = opened(tmp_path).receive(published(sender, 1, made(1.0).items()))
    next(hung)
    for version in (2, 3):
        newest = published(sender, version, made(float(version)).items())
    assert "v4.e1" in receiver.follow(never_sent(newest, 4))
    assert time.monotonic() - started < SECONDS / 2


# While it is sent.


def send_in_turn(
    open_: Open, folder: Path, turns: "SimpleQueue[int]", told: "SimpleQueue[str]"
) -> None:
    transport = open_(folder)
    told.put(transport.send(1, made(1.0).items(), epoch=1))
    turns.get()
    transport.send(2, [("a", torch.ones(1 << 24))], epoch=1)
    told.put("whole")


@pytest.mark.parametrize("case", ["C039-killed"])
def test_a_sender_that_is_killed_in_the_middle(
    opened: Open, lying: Lying, tmp_path: Path, case: str
) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        turns, told = fork.SimpleQueue(), fork.SimpleQueue()
        child = fork.Process(target=send_in_turn, args=(opened, folder, turns, told), daemon=True)
        child.start()
        first = manifest_of(made(1.0), version=1, location=told.get())
        receiver = Receiver(Tied(), opened(folder))
        assert receiver.follow(first) == ""
        turns.put(2)
        kill_while_sending(child, lying, folder)
        if "v2.e1" in lying(folder) and "v2.e1" in receiver.follow(never_sent(first, 2)):
            break
    else:
        raise AssertionError("never caught in the act")
    assert serves(receiver, 1)
    successor = opened(folder)
    for version in range(3, 10):
        assert receiver.follow(published(successor, version, made(version).items(), epoch=2)) == ""
        assert serves(receiver, version)
    assert not [name for name in lying(folder) if name.endswith("e1")], "what was left goes"


def kill_while_sending(child: ForkProcess, lying: Lying, folder: Path) -> None:
    """As soon as something of it is there."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and child.is_alive() and "v2.e1" not in lying(folder):
        pass
    child.kill()
    child.join()


def never_sent(like: Manifest, version: int) -> Manifest:
    """As of a version that lies where it would, and does not."""
    former = f"v{like.version}.e1"
    location = like.location.replace(former, f"v{version}.e1")
    return manifest_of(made(float(version)), version=version, location=location)


def send_many(
    open_: Open, folder: Path, epoch: int, told: "SimpleQueue[tuple[int, int, str]]"
) -> None:
    transport = open_(folder)
    for version in range(1, 25):
        value = float(100 * epoch + version)
        try:
            location = transport.send(version, made(value).items(), epoch=epoch)
        except WeightsError as exc:
            location = f"error: {exc}"
        told.put((epoch, version, location))
    told.put((epoch, 0, ""))
    told.put((epoch, 0, ""))


@pytest.mark.parametrize("case", ["C039-two at once"])
def test_two_senders_at_once(opened: Open, tmp_path: Path, case: str) -> None:
    """One was replaced and does not know it yet: neither spoils what the other sends."""
    receiver, told = opened(tmp_path), fork.SimpleQueue()
    senders = [
        fork.Process(target=send_many, args=(opened, tmp_path, epoch, told), daemon=True)
        for epoch in (1, 2)
    ]
    for sender in senders:
        sender.start()
    errors, read, ended, last = [], {1: 0, 2: 0}, 0, ""
    while ended < 4:
        epoch, version, location = told.get()
        ended += version == 0
        last = location if (epoch, version) == (2, 24) else last
        if location.startswith("error: "):
            errors.append((epoch, location))
        elif location:
            read[epoch] += whole(receiver, epoch, version, location)
    for sender in senders:
        sender.join()
    assert all(epoch == 1 and "cannot be written under" in error for epoch, error in errors)
    assert read[2], "nothing was read of the one that leads"
    assert whole(receiver, 2, 24, last)


def whole(receiver: Transport, epoch: int, version: int, location: str) -> bool:
    """Whether it is there still, and then it is what its sender sent."""
    right = made(float(100 * epoch + version))
    try:
        received = dict(receiver.receive(manifest_of(right, version=version, location=location)))
    except WeightsError:
        return False
    assert same(received, right)
    return True


# No room.

ON_DISK = [kind for kind in KINDS if not kind.startswith("redis")]


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Nothing more goes into this file system."""
    filler = folder / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    yield
    filler.unlink()


@contextmanager
def limited(_: Path) -> Iterator[None]:
    """No file of this process may grow beyond 100 bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted as root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(open_: Open, folder: Path, full: Callable[[Path], Iterator[None]], said: str) -> None:
    sender = open_(folder)
    receiver = Receiver(Tied(), open_(folder))
    first = published(sender, 1, made(1.0).items())
    assert receiver.follow(first) == ""
    with (
        full(folder),
        pytest.raises(WeightsError, match=f"version 2 .* under .*{folder}: .*{said}"),
    ):
        published(sender, 2, made(2.0).items())
    assert not [*folder.rglob("*.partial")] and not [*folder.rglob("v2*")]
    assert serves(receiver, 1)
    assert same(dict(receiver.transport.receive(first)), made(1.0)), "who joins may still fetch it"
    assert receiver.follow(published(sender, 3, made(3.0).items())) == ""
    assert serves(receiver, 3)


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("case", ["C039-no room on the disk"])
def test_a_disk_that_is_full(opened: Open, small: Path, case: str) -> None:
    fill_up(opened, small, filled, "No space left on device")


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("case", ["C039-no room for the process"])
def test_a_file_that_may_not_grow(opened: Open, tmp_path: Path, case: str) -> None:
    """In a process of its own: what pytest writes may grow."""
    child = fork.Process(target=fill_up, args=(opened, tmp_path, limited, "File too large"))
    child.start()
    child.join()
    assert child.exitcode == 0

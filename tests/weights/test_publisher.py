import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from tied import Tied
from torch import Tensor

from pipeline.errors import Fenced, WeightsError
from pipeline.messages import Manifest
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.protocols import Held, Transport
from pipeline.weights.publisher import Publisher
from pipeline.weights.shm import ShmTransport
from pipeline.weights.staging import Expected, Staging


def test_what_is_published_can_be_staged_and_has_the_models_fingerprint(
    transport: Transport, model: Tied, expected: Expected
) -> None:
    announced: list[Manifest] = []
    publisher = Publisher(announced.append, transport, epoch=4)
    publisher.publish(3, 2, named_parameters(model))
    publisher.flush()
    (manifest,) = announced
    assert (manifest.version, manifest.step, manifest.epoch) == (3, 2, 4)
    assert manifest.fingerprint == fingerprint(named_parameters(model))
    staging = Staging(expected)
    staging.begin(manifest, transport)
    assert staging.wait(20) and staging.take() is not None


def test_C043_the_transports_dtype_is_what_is_sent_and_proven(
    transport: Transport, model: Tied
) -> None:
    announced: list[Manifest] = []
    publisher = Publisher(announced.append, transport, epoch=1, dtype=torch.bfloat16)
    publisher.publish(1, 1, named_parameters(model))
    publisher.flush()
    assert {entry.dtype for entry in announced[0].tensors} == {"bfloat16"}
    assert announced[0].fingerprint == fingerprint(named_parameters(model), torch.bfloat16)


class Slow:
    """A transport that takes until its gate is open, and notes what it was given."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        self.sent: dict[int, dict[str, Tensor]] = {}

    def send(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        epoch: int,
        fingerprint: str = "",
    ) -> str:
        self.entered.set()
        assert self.gate.wait(20)
        self.sent[version] = dict(tensors)
        return f"v{version}"

    def receive(self, manifest: Manifest, held: Held | None = None) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def drop(self, version: int) -> None:
        raise NotImplementedError


def test_the_newest_wins_and_a_skipped_version_is_never_announced() -> None:
    announced: list[Manifest] = []
    slow = Slow()
    publisher = Publisher(announced.append, slow, epoch=1)
    publisher.publish(1, 1, [("a", torch.ones(1))])
    assert slow.entered.wait(20)
    for version in (2, 3, 4):
        publisher.publish(version, version, [("a", torch.full((1,), float(version)))])
    assert announced == []
    slow.gate.set()
    publisher.flush()
    assert [manifest.version for manifest in announced] == [1, 4]
    assert list(slow.sent) == [1, 4]


def test_a_step_that_follows_at_once_does_not_change_what_is_sent() -> None:
    slow = Slow()
    publisher = Publisher(lambda manifest: None, slow, epoch=1)
    weight = torch.ones(3)
    publisher.publish(1, 1, [("a", weight)])
    weight.add_(1)
    slow.gate.set()
    publisher.flush()
    assert torch.equal(slow.sent[1]["a"], torch.ones(3))


def test_an_announcement_follows_its_tensors() -> None:
    slow = Slow()
    slow.gate.set()
    sent_before: list[bool] = []
    publisher = Publisher(lambda m: sent_before.append(m.version in slow.sent), slow, epoch=1)
    publisher.publish(1, 1, [("a", torch.ones(1))])
    publisher.flush()
    assert sent_before == [True]


def test_an_error_of_the_sender_is_raised_once_and_the_next_version_goes_out(
    tmp_path: Path,
) -> None:
    announced: list[Manifest] = []
    folder = tmp_path / "shm"
    publisher = Publisher(announced.append, ShmTransport(folder=str(folder), run="r"), epoch=1)
    publisher.publish(1, 1, [("a", torch.ones(2))])
    with pytest.raises(WeightsError, match="version 1 cannot be written"):
        publisher.flush()
    folder.mkdir()
    publisher.publish(2, 2, [("a", torch.ones(2))])
    publisher.flush()
    assert [manifest.version for manifest in announced] == [2]


def test_who_waits_for_work_hears_of_an_error_of_the_sender_once(tmp_path: Path) -> None:
    transport = ShmTransport(folder=str(tmp_path / "nowhere"), run="r")
    publisher = Publisher(lambda manifest: None, transport, epoch=1)
    publisher.check()
    publisher.publish(1, 1, [("a", torch.ones(1))])
    with pytest.raises(WeightsError, match="version 1 cannot be written"):
        for _ in range(2000):
            publisher.check()
            time.sleep(0.005)
    publisher.check()


def test_a_fenced_announcement_is_raised_as_such_and_the_next_publish_sends_nothing() -> None:
    slow = Slow()
    slow.gate.set()
    fenced = threading.Event()

    def announce(manifest: Manifest) -> None:
        fenced.set()
        raise Fenced("epoch 2 leads")

    publisher = Publisher(announce, slow, epoch=1)
    publisher.publish(1, 1, [("a", torch.ones(1))])
    assert fenced.wait(20)
    for thread in threading.enumerate():
        if thread.name == "publisher":
            thread.join(20)
    with pytest.raises(Fenced):
        publisher.publish(2, 2, [("a", torch.ones(1))])
    publisher.flush()
    assert list(slow.sent) == [1]

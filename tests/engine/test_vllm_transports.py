"""Every transport that vLLM's workers stage from: fifty flips under load, a fault in each phase.

One vLLM serves all: its workers are told of another origin for each test.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from cargo import Cargo, names
from engine_models import plain_logprobs
from msgspec.structs import replace
from safetensors.torch import save_file
from servers import Server, running
from vllm_engines import CANARY, Vllm, tiny_for_vllm
from vllm_load import LiveLoad

from pipeline.messages import Canary, Manifest
from pipeline.model.fingerprint import describe_all, fingerprint_of, named_parameters
from pipeline.weights.origin import Origin
from pipeline.weights.publisher import Publisher
from services.inference.canary import gap_of
from services.inference.engines.vllm.engine import VllmEngine
from services.inference.engines.vllm.expected import Entry

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

FLIPS, WHOLE_EVERY = 50, 3
RUN = "flips"
SPECS: dict[str, dict[str, Any]] = {
    "shm": {"use": "shm"},
    "files": {"use": "files"},
    "files-patches": {"use": "files", "whole_every": WHOLE_EVERY},
    "url": {"use": "files"},
    "url-patches": {"use": "files", "whole_every": WHOLE_EVERY},
    "redis": {"use": "redis"},
    "redis-patches": {"use": "redis", "whole_every": WHOLE_EVERY},
}
IN_EVERY_RUN = ("redis-patches",)
KINDS = [
    kind if kind in IN_EVERY_RUN else pytest.param(kind, marks=pytest.mark.long) for kind in SPECS
]
EACH = pytest.mark.parametrize("place", KINDS, indirect=True)
PATCHES = [p for p in KINDS if "patches" in str(p)]


class Place:
    """Where versions of one transport lie."""

    def __init__(self, kind: str, folder: Path, server: Server | None) -> None:
        self.folder, self.server = folder, server
        self.url = server.url if server else ""
        spec = SPECS[kind]
        if not server:
            is_url = kind.startswith("url")
            spec = {**spec, "folder": f"dir://there::file://{folder}" if is_url else str(folder)}
        self.origin = Origin(spec, RUN, self.url)

    def cargo(self, manifest: Manifest) -> Cargo:
        """What lies there of the version."""
        found = Cargo(manifest, self.url)
        found.place = found.place.replace("dir://", f"{self.folder}/")
        return found

    def whole(self, manifest: Manifest) -> Cargo:
        """The version that its patches begin with."""
        return self.cargo(replace(manifest, location=json.loads(manifest.location)["whole"]))

    def lying(self) -> set[str]:
        return names(self.folder, RUN, self.url)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody gets there for a while."""
        if self.server:
            self.server.kill()
            yield
            self.server.start()
        else:
            gone = self.folder.rename(f"{self.folder}-gone")
            yield
            gone.rename(self.folder)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "place"
    folder.mkdir()
    with running() if request.param.startswith("redis") else nullcontext() as server:
        yield Place(request.param, folder, server)


class Trainer:
    """Sends a version whenever it is told to; few elements change each time, but by much."""

    def __init__(self, place: Place, *, epoch: int = 1) -> None:
        self.model, self.version, self.sent = tiny_for_vllm(tied=False), 0, list[Manifest]()
        self.transport, self.patches = place.origin.transport(), place.origin.patches
        self._publisher = Publisher(self.sent.append, self.transport, epoch=epoch)

    def step(self, **more: torch.Tensor) -> Manifest:
        """The next version; of `more` tensors as well."""
        self.version += 1
        self.change()
        named = [*named_parameters(self.model), *more.items()]
        self._publisher.publish(self.version, self.version, named, canary=self.canary())
        self._publisher.flush()
        return self.sent[-1]

    def manifest(self, version: int, location: str) -> Manifest:
        """Of the model as it is, wherever it lies."""
        entries = describe_all(named_parameters(self.model))
        return Manifest(
            version=version,
            step=version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=location,
            tensors=entries,
            canary=self.canary(),
        )

    def change(self) -> None:
        """A few elements of each tensor."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.view(-1)[self.version % 31 :: 97].add_(0.1)

    def canary(self) -> Canary:
        """By a plain pass of transformers."""
        found = plain_logprobs(self.model, CANARY[:1], CANARY[1:]).tolist()
        return Canary(ids=array("i", CANARY).tobytes(), logprobs=array("f", found).tobytes())


def serves(engine: VllmEngine, manifest: Manifest) -> bool:
    """By version, by what it says of itself, and by what it computes."""
    assert manifest.canary
    is_it = (engine.version, engine.fingerprint()) == (manifest.version, manifest.fingerprint)
    return is_it and gap_of(manifest.canary, engine.logprobs(CANARY)).largest <= 1e-4


@EACH
def test_fifty_flips_under_load_leave_vllm_with_the_trainers_weights(
    vllm: Vllm, place: Place
) -> None:
    """Asked for after numbers of tokens, and each in the midst of sequences."""
    trainer = Trainer(place)
    engine = vllm.engine(origin=place.origin)
    load = LiveLoad(engine)
    for number in range(FLIPS):
        load.draw(10 + 37 * number % 150)
        engine.stage(trainer.step(), trainer.transport)
        load.flip()
        assert engine.version == trainer.version
    assert serves(engine, trainer.sent[-1])
    assert not serves(engine, trainer.sent[-2])
    assert load.end() == {*range(FLIPS + 1)}
    assert load.crossed() >= {(version, version + 1) for version in range(FLIPS)}


@pytest.mark.parametrize("place", PATCHES, indirect=True)
def test_a_patch_of_what_serves_is_all_that_vllm_fetches(vllm: Vllm, place: Place) -> None:
    """Nothing else is there; where the former version serves again, a patch of that."""
    trainer, engine = Trainer(place), vllm.engine(origin=place.origin)
    engine.stage(first := trainer.step(), trainer.transport)
    load = LiveLoad(engine)
    load.flip()
    second = trainer.step()
    whole, patch = place.whole(first), place.cargo(second)
    assert 0 < len(patch.read()) < len(whole.read()) / 3
    whole.remove()
    engine.stage(second, trainer.transport)
    load.flip()
    assert serves(engine, second)
    load.end()


# Faults before it is whole.


def checksum_wrong(trainer: Trainer, place: Place) -> Manifest:
    """In the announcement."""
    manifest = trainer.step()
    first, *rest = manifest.tensors
    tensors = (replace(first, checksum="0" * len(first.checksum)), *rest)
    return replace(manifest, tensors=tensors, fingerprint=fingerprint_of(tensors))


def truncated(trainer: Trainer, place: Place) -> Manifest:
    cargo = place.cargo(manifest := trainer.step())
    raw = cargo.read()
    cargo.write(raw[: len(raw) // 2])
    return manifest


def missing(trainer: Trainer, place: Place) -> Manifest:
    place.cargo(manifest := trainer.step()).remove()
    return manifest


def not_a_number(trainer: Trainer, place: Place) -> Manifest:
    """As trained: the announcement says so, too."""
    weight = trainer.model.model.norm.weight.data
    was = weight[3].item()
    weight[3] = torch.nan
    manifest = trainer.step()
    weight[3] = was
    return manifest


def as_it_is(trainer: Trainer, place: Place) -> Manifest:
    return trainer.step()


Fault = Callable[[Trainer, Place], Manifest]
UNREAD = r"cannot be read from .*v2\.e1"
FAULTS: dict[str, tuple[Fault, str]] = {
    "C025-checksum": (checksum_wrong, r"checksum [0-9a-f]+, expected 0+$"),
    "C039-truncated": (truncated, UNREAD),
    "C039-missing": (missing, UNREAD),
    "C026-NaN": (not_a_number, "norm.weight: not all values are finite"),
    "C040-unreachable": (as_it_is, UNREAD),
}


@EACH
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long if "unreach" in case else ()) for case in FAULTS],
)
def test_a_fault_before_a_version_is_whole_costs_that_version_alone(
    vllm: Vllm, place: Place, case: str
) -> None:
    fault, message = FAULTS[case]
    trainer, engine = Trainer(place), vllm.engine(origin=place.origin)
    load = LiveLoad(engine)
    engine.stage(first := trainer.step(), trainer.transport)
    load.flip()
    manifest = fault(trainer, place)
    with place.away() if case.endswith("unreachable") else nullcontext():
        refused(load, trainer, manifest, message)
    assert serves(engine, first)
    newest = succeeded(load, trainer)
    assert load.end() == {0, 1, newest} and (1, newest) in load.crossed()


def refused(load: LiveLoad, trainer: Trainer, manifest: Manifest, message: str) -> None:
    """By name, under load."""
    load.draw(40)
    load.engine.stage(manifest, trainer.transport)
    error = load.settle()
    assert error.startswith(f"version {manifest.version} not staged: ")
    assert re.search(message, error), error
    assert load.engine.flip() is None


def succeeded(load: LiveLoad, trainer: Trainer) -> int:
    """The next version serves; which one that is.

    Where patches travel the damage may be to one that others are based on: then it is the next
    version that travels whole, once a worker has begun anew, as it does when it tries again.
    """
    serving, error = load.engine.version, ""
    for _ in range(WHOLE_EVERY if trainer.patches else 1):
        newest = trainer.step()
        for _ in range(2 if trainer.patches else 1):
            load.engine.stage(newest, trainer.transport)
            if not (error := load.settle()):
                load.flip()
                assert serves(load.engine, newest)
                return newest.version
            assert load.engine.version == serving
    raise AssertionError(error)


SENDER = """
import sys
from pathlib import Path
import msgspec, torch
from safetensors.torch import load_file
from pipeline.weights.origin import Origin

origin, folder = msgspec.json.decode(sys.argv[1]), Path(sys.argv[2])
transport = Origin(*origin).transport()
print(transport.send(1, load_file(folder / "1.safetensors").items(), epoch=1), flush=True)
sys.stdin.readline()
transport.send(2, [("a", torch.ones(1 << 25))], epoch=1)
"""


@EACH
def test_C039_a_sender_that_is_killed_costs_the_version_that_it_was_sending(
    vllm: Vllm, place: Place, tmp_path: Path
) -> None:
    """Even where that was announced; then a successor sends."""
    trainer, engine = Trainer(place, epoch=2), vllm.engine(origin=place.origin)
    trainer.change()
    save_file({n: p.data for n, p in named_parameters(trainer.model)}, tmp_path / "1.safetensors")
    args = [sys.executable, "-c", SENDER, msgspec.json.encode(place.origin), str(tmp_path)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdin and sender.stdout
        first = trainer.manifest(1, location := sender.stdout.readline().strip())
        engine.stage(first, trainer.transport)
        (load := LiveLoad(engine)).flip()
        print(file=sender.stdin, flush=True)
        while "v2.e1" not in place.lying():
            assert sender.poll() is None
        sender.kill()
    trainer.version = 2
    trainer.change()
    refused(load, trainer, trainer.manifest(2, location.replace("v1.e1", "v2.e1")), UNREAD)
    assert serves(engine, first)
    assert succeeded(load, trainer) == 3
    assert load.end() == {0, 1, 3}


# Faults of the flip itself.


@EACH
def test_C027_a_load_that_breaks_off_half_way_costs_that_version_alone(
    vllm: Vllm, place: Place
) -> None:
    """vLLM has no place for one of the tensors, and finds that out when others are in."""
    name = "model.layers.1.unknown.weight"
    engine = vllm.engine(origin=place.origin, more=[Entry(name, "float32", (3,))])
    trainer, load = Trainer(place), LiveLoad(engine)
    canary = trainer.canary()
    load.draw(40)
    engine.stage(trainer.step(**{name: torch.ones(3)}), trainer.transport)
    assert load.settle() == "" and engine.flip() is None
    assert re.search("version 1 not loaded: .*layers.1.unknown", engine.staging_error() or "")
    assert engine.version == 0
    assert gap_of(canary, engine.logprobs(CANARY)).largest <= 1e-4
    vllm.expect(engine)
    assert succeeded(load, trainer) == 2
    assert load.end() == {0, 2} and (0, 2) in load.crossed()


@EACH
def test_a_flip_that_is_reverted_costs_that_version_alone(vllm: Vllm, place: Place) -> None:
    trainer, engine = Trainer(place), vllm.engine(origin=place.origin)
    load = LiveLoad(engine)
    for _ in range(2):
        engine.stage(trainer.step(), trainer.transport)
        load.flip()
    load.draw(40)
    assert engine.revert() > 0
    assert {prefix.spans[-1].version for prefix in engine.prefixes()} <= {0, 1}
    assert serves(engine, trainer.sent[0])
    assert succeeded(load, trainer) == 3
    assert load.end() >= {0, 1, 3} and (1, 3) in load.crossed()

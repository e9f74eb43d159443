"""What every test of the weights starts from: a model, its tensors, a transport of each kind."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from cargo import Cargo, names
from kinds import KINDS, Open, run_of
from tied import Tied
from torch import Tensor

from pipeline.bus.connection import client_of
from pipeline.messages import Manifest
from pipeline.model.fingerprint import named_parameters
from pipeline.protocols import Transport
from pipeline.weights.shm import ShmTransport
from pipeline.weights.staging import Expected


@pytest.fixture
def model() -> Tied:
    torch.manual_seed(3)
    return Tied()


@pytest.fixture
def tensors(model: Tied) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_parameters(model)}


@pytest.fixture
def expected(tensors: dict[str, Tensor]) -> Expected:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """Of the server, where the transport needs one."""
    return str(request.getfixturevalue("server_url")) if kind.startswith("redis") else ""


@pytest.fixture
def opened(kind: str, url: str) -> Iterator[Open]:
    """Opens a transport of this kind over a folder, as each process of a run does."""
    made: list[Transport] = []
    folders: set[Path] = set()

    def open_one(folder: Path) -> Transport:
        folders.add(folder)
        made.append(KINDS[kind](folder, url))
        return made[-1]

    yield open_one
    for transport in made:
        if isinstance(transport, ShmTransport):
            transport.close()
    if url:
        with client_of(url) as client:
            for folder in folders:
                for key in client.scan_iter(match=f"sluice:{{{run_of(folder)}}}:*"):
                    client.unlink(key)


@pytest.fixture
def transport(opened: Open, tmp_path: Path) -> Transport:
    return opened(tmp_path)


@pytest.fixture
def cargo(url: str) -> Callable[[Manifest], Cargo]:
    return partial(Cargo, url=url)


@pytest.fixture
def lying(url: str) -> Callable[[Path], set[str]]:
    return lambda folder: names(folder, run_of(folder), url)

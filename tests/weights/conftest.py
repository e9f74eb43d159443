"""What every test of the weights starts from: a model, its tensors, a transport of each kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tied import Tied
from torch import Tensor

from pipeline.model.fingerprint import named_parameters
from pipeline.weights.files import FilesTransport
from pipeline.weights.shm import ShmTransport
from pipeline.weights.staging import Expected
from pipeline.weights.store import Store

KINDS: dict[str, Callable[[Path], Store]] = {
    "shm": lambda folder: ShmTransport(folder=str(folder), run="run"),
    "files": lambda folder: FilesTransport(folder=str(folder), run="run"),
}


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
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Store]]:
    """Opens a transport of this kind over a folder, as each process of a run does."""
    made: list[Store] = []

    def open_one(folder: Path) -> Store:
        made.append(KINDS[request.param](folder))
        return made[-1]

    yield open_one
    for transport in made:
        if isinstance(transport, ShmTransport):
            transport.close()


@pytest.fixture
def transport(opened: Callable[[Path], Store], tmp_path: Path) -> Store:
    return opened(tmp_path)

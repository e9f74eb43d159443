"""What every test of the weights starts from: a model, its tensors, a transport."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tied import Tied
from torch import Tensor

from pipeline.model.fingerprint import named_parameters
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


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[ShmTransport]:
    transport = ShmTransport(folder=str(tmp_path), run="run")
    yield transport
    transport.close()

import pytest
import torch
from tied import Tied, manifest_of
from torch import Tensor

from pipeline.model.fingerprint import checksum, fingerprint, fingerprint_of, named_parameters


def test_tied_parameters_travel_once_and_buffers_not_at_all(model: Tied) -> None:
    names = [name for name, _ in named_parameters(model)]
    assert names == ["embed.weight", "norm.bias", "norm.weight", "scale"]


def test_live_parameters_and_a_manifest_agree(model: Tied, tensors: dict[str, Tensor]) -> None:
    manifest = manifest_of(tensors, version=1, location="")
    assert fingerprint(named_parameters(model)) == manifest.fingerprint
    assert fingerprint_of(reversed(manifest.tensors)) == manifest.fingerprint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checksum_sees_one_bit_and_no_layout(dtype: torch.dtype) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).to(dtype)
    flipped = tensor.clone()
    flipped.view(torch.uint8)[1, 3] ^= 1
    assert checksum(tensor) != checksum(flipped)
    assert checksum(tensor.T) == checksum(tensor.T.contiguous()) != checksum(tensor)


def test_a_fingerprint_sees_name_dtype_and_shape() -> None:
    zeros = torch.zeros(4)
    variants = [
        [("a", zeros)],
        [("b", zeros)],
        [("a", zeros.reshape(2, 2))],
        [("a", torch.zeros(4, dtype=torch.int32))],
        [("a", zeros), ("b", zeros)],
    ]
    assert len({fingerprint(named) for named in variants}) == len(variants)


def test_C043_the_fingerprint_is_taken_in_the_transports_dtype() -> None:
    masters = [("a", torch.tensor([1 + 2**-10, 1 + 2**-7]))]
    sent = [("a", torch.tensor([1.0, 1 + 2**-7], dtype=torch.bfloat16))]
    assert fingerprint(masters, torch.bfloat16) == fingerprint(sent)
    widened = [(name, tensor.float()) for name, tensor in sent]
    assert fingerprint(widened, torch.bfloat16) == fingerprint(sent)

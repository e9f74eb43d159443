"""Bits to a patch and back, of every kind of tensor; and no patch that was damaged is applied."""

import math
import random

import pytest
import torch

from pipeline.errors import WeightsError
from pipeline.weights import patch as module
from pipeline.weights.patch import apply, encode

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex128,
]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def changed(raw: torch.Tensor, share: float, largest: int) -> torch.Tensor:
    other = torch.randint(0, largest, raw.shape, dtype=torch.uint8)
    return torch.where(torch.rand(raw.shape) < share, other, raw)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_patch_gives_back_every_bit(dtype: torch.dtype) -> None:
    """Also of what is no number, and of zeros below zero: bytes at random have them all."""
    torch.manual_seed(0)
    largest = 2 if dtype is torch.bool else 256
    for shape in ((), (0, 3), (7,), (300, 40)):
        size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, largest, (size,), dtype=torch.uint8)
        old = raw.view(dtype).reshape(shape)
        for share in (0.0, 0.01, 0.5, 1.0):
            new = changed(raw, share, largest).view(dtype).reshape(shape)
            before = bits(old).clone()
            made = encode(old, new)
            assert bool(made) is not torch.equal(bits(old), bits(new))
            if made:
                result = apply(old, made)
                assert (result.dtype, result.shape) == (new.dtype, new.shape)
                assert torch.equal(bits(result), bits(new))
                assert torch.equal(bits(old), before), "what is live is not written into"


def test_a_tensor_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 1000)
    old = torch.randn(3456)
    new = torch.where(torch.arange(3456) % 7 == 3, old + 1, old)
    new[1000:2000] = old[1000:2000]
    assert torch.equal(apply(old, encode(old, new)), new)


def test_a_patch_that_was_damaged_is_refused_or_differs_and_never_more_than_that() -> None:
    """Whatever it makes of the tensor is held against the version's checksum."""
    draw = random.Random(1)
    old = torch.randn(5000)
    whole = encode(old, torch.where(torch.rand(5000) < 0.1, old + 1e-3, old))
    for _ in range(300):
        spoilt = bytearray(whole)
        for _ in range(draw.choice([1, 3])):
            spoilt[draw.randrange(len(whole))] = draw.randrange(256)
        try:
            assert apply(old, bytes(spoilt)).shape == old.shape
        except WeightsError as exc:
            assert "is damaged" in str(exc)
    for length in (0, 3, 8, len(whole) // 2, len(whole) - 1):
        with pytest.raises(WeightsError, match="is damaged"):
            apply(old, whole[:length])
    with pytest.raises(WeightsError, match="1 bytes too many"):
        apply(old, whole + b"\0")
    with pytest.raises(WeightsError, match="beyond the tensor"):
        apply(old[:10], whole)


def test_a_step_of_one_unit_in_the_last_place_takes_few_bytes_whatever_the_exponent() -> None:
    torch.manual_seed(0)
    old = (torch.randn(200_000) * 10 ** torch.randint(-6, 6, (200_000,))).bfloat16()
    step = torch.randint(0, 2, (200_000,)) * 2 - 1
    moved = (old.view(torch.int16) + step).to(torch.int16).view(torch.bfloat16)
    new = torch.where(torch.rand(200_000) < 0.01, moved, old)
    number = int((bits(old).view(torch.int16) != bits(new).view(torch.int16)).sum())
    assert len(encode(old, new)) < 1.6 * number

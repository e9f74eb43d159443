"""No value of a version may be NaN or infinite, wherever in a tensor it stands."""

from __future__ import annotations

import pytest
import torch

from pipeline.weights.staging import all_finite

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 64, 4097])
def test_one_bad_value_anywhere_is_seen(dtype: torch.dtype, size: int) -> None:
    sound = torch.randn(size).to(dtype)
    assert all_finite(sound)
    for place in {0, size // 2, size - 1}:
        for bad in (float("nan"), float("inf"), -float("inf")):
            tensor = sound.clone()
            tensor[place] = bad
            assert not all_finite(tensor), (place, bad)


def test_an_empty_tensor_and_whole_numbers_are_sound() -> None:
    assert (
        all_finite(torch.empty(0, 4))
        and all_finite(torch.arange(3))
        and all_finite(torch.tensor(1.0))
    )

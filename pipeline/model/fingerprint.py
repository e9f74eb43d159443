"""What proves that two sides hold the same weights: a checksum per tensor, one over all of them.

A manifest's entries and live parameters go through the same two functions, so both agree by
construction. Moving and staging tensors is in `pipeline.weights`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from pipeline import messages

Named = Iterable[tuple[str, Tensor]]


def named_parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters that travel, which are those that are trained, by name; no buffers.

    Tied ones once, under the first name.
    """
    return [(name, p) for name, p in _by_name(model) if p.requires_grad]


def frozen_parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The others: each side has them already, and a fingerprint covers them as well."""
    return [(name, p) for name, p in _by_name(model) if not p.requires_grad]


def _by_name(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return sorted(model.named_parameters(), key=lambda pair: pair[0])


def cast(named: Named, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Floating-point tensors in `dtype` (None: as they are), the others untouched."""
    for name, tensor in named:
        wanted = dtype is not None and tensor.is_floating_point()
        yield name, tensor.to(dtype) if wanted else tensor


def dtype_name(dtype: torch.dtype) -> str:
    """The name on the wire: `bfloat16`, not `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def checksum(tensor: Tensor) -> str:
    """blake2b of the contiguous bytes, 8 bytes in hex."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().data, digest_size=8).hexdigest()


def describe(name: str, tensor: Tensor) -> messages.Tensor:
    """The tensor's entry in a manifest."""
    return messages.Tensor(name, dtype_name(tensor.dtype), tuple(tensor.shape), checksum(tensor))


def describe_all(named: Named, dtype: torch.dtype | None = None) -> tuple[messages.Tensor, ...]:
    """Their entries, in the transport's `dtype` where one is given."""
    return tuple(describe(name, tensor) for name, tensor in cast(named, dtype))


def fingerprint(named: Named, dtype: torch.dtype | None = None) -> str:
    """Of all the tensors, in the transport's `dtype` where one is given; 16 bytes in hex."""
    return fingerprint_of(describe_all(named, dtype))


def fingerprint_of(entries: Iterable[messages.Tensor]) -> str:
    """The fingerprint of the tensors that these entries describe, in any order."""
    digest = hashlib.blake2b(digest_size=16)
    for entry in sorted(entries, key=lambda e: e.name):
        digest.update(f"{entry.name}|{entry.dtype}|{entry.shape}|{entry.checksum}\n".encode())
    return digest.hexdigest()

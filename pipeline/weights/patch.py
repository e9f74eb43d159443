"""What changed in a tensor, bit for bit, and back. Versions and who has which: `delta`. † torch

A patch is bytes: blocks of up to BLOCK elements, each deflated by itself, so that the memory that
one takes is bounded. Where an element changed is told by the gap to the one before; by how much, as
the difference of the two bit patterns read as integers: a step of one unit in the last place is 1
or -1 whatever the exponent. Both are small nearly always, and are a byte each; what is larger
follows behind.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import WeightsError

BLOCK = 1 << 22
"""Elements: 32 MB of indices where all of them changed."""
_HEAD = struct.Struct("<II")
_RAW = -15  # deflate without a header or a checksum: a version has its own
_DAMAGED = (zlib.error, struct.error, ValueError, IndexError)

Array = NDArray[Any]


def encode(old: Tensor, new: Tensor) -> bytes:
    """The patch from one tensor to another of its dtype and shape; empty where nothing changed."""
    before, after = _bits(old), _bits(new)
    blocks = [_encode(before[part], after[part]) for part in _parts(len(before))]
    return b"".join(blocks) if any(len(block) > _HEAD.size for block in blocks) else b""


def apply(old: Tensor, patch: bytes) -> Tensor:
    """A tensor of its own, in host memory. Raises WeightsError for bytes that are no patch."""
    new = torch.empty_like(old, device="cpu", memory_format=torch.contiguous_format).copy_(old)
    values, rest = _bits(new), memoryview(patch)
    try:
        for part in _parts(len(values)):
            rest = _apply(values[part], rest)
    except _DAMAGED as exc:
        raise WeightsError(f"is damaged ({exc})") from exc
    if rest:
        raise WeightsError(f"is damaged ({len(rest)} bytes too many)")
    return new


def _bits(tensor: Tensor) -> Array:
    """The elements as signed integers of their size, without a copy where it is contiguous."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw.view(f"i{min(tensor.element_size(), 8)}")


def _parts(length: int) -> Iterator[slice]:
    for first in range(0, length, BLOCK):
        yield slice(first, first + BLOCK)


def _encode(old: Array, new: Array) -> bytes:
    where = np.flatnonzero(old != new)
    if not len(where):
        return _HEAD.pack(0, 0)
    gaps = np.diff(where, prepend=-1) - 1
    body = _deflated(gaps.astype("u4"), _zigzag(new[where] - old[where]))
    return _HEAD.pack(len(where), len(body)) + body


def _apply(values: Array, patch: memoryview) -> memoryview:
    """Change the values of one block; what follows it."""
    count, size = _HEAD.unpack(patch[: _HEAD.size])
    body, rest = patch[_HEAD.size : _HEAD.size + size], patch[_HEAD.size + size :]
    if count:
        gaps, steps = _inflated(body, count, [4, values.itemsize])
        where = np.cumsum(gaps.astype("i8") + 1) - 1
        if where[-1] >= len(values):
            raise ValueError("it goes beyond the tensor")
        values[where] += _unzigzag(steps)
    return rest


def _zigzag(steps: Array) -> Array:
    """0, -1, 1, -2 … to 0, 1, 2, 3 …; steps wrap around, so they have room in their own size."""
    return ((steps << 1) ^ (steps >> (8 * steps.itemsize - 1))).view(f"u{steps.itemsize}")


def _unzigzag(values: Array) -> Array:
    return ((values >> 1) ^ -(values & 1)).view(f"i{values.itemsize}")


def _deflated(*streams: Array) -> bytes:
    """All lowest bytes of a stream, then all next ones and so on, of which most are 0."""
    # Runs and Huffman codes: there are hardly other repeats, and to search for them takes its time.
    packer = zlib.compressobj(level=1, wbits=_RAW, memLevel=9, strategy=zlib.Z_RLE)
    planes = (s.view("u1").reshape(len(s), -1).T.tobytes() for s in streams)
    return b"".join([*(packer.compress(plane) for plane in planes), packer.flush()])


def _inflated(body: memoryview, count: int, sizes: list[int]) -> Iterator[Array]:
    total, unpacker = sum(sizes) * count, zlib.decompressobj(wbits=_RAW)
    raw = unpacker.decompress(body, total + 1)  # and no more, whatever the bytes are
    if len(raw) != total or not unpacker.eof:
        raise ValueError("it ends too early, or too late")
    for size in sizes:
        planes, raw = np.frombuffer(raw, "u1", size * count), raw[size * count :]
        yield np.ascontiguousarray(planes.reshape(size, count).T).view(f"u{size}").reshape(-1)

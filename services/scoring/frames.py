"""What the scoring process and its workers say to each other: frames over a socket.

A frame is its length (4 bytes, little-endian) and then JSON: references are JSON, and their whole
numbers know no 64 bits, which msgpack's do. Nothing here waits or starts anything.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from pipeline.messages import Teaching
from pipeline.protocols import Answer
from pipeline.run import Spec

F = TypeVar("F", bound=Struct)

HEADER_BYTES = 4


class Setup(Struct, frozen=True, kw_only=True):
    """A worker's first frame: its scorers, and the bytes of memory that it may ask for.

    `policy` is where the run's model comes from, for scorers that have one of their own.
    """

    specs: tuple[Spec, ...]
    memory_bytes: int
    policy: str = ""


class Ready(Struct, frozen=True, kw_only=True):
    """Its reply: every scorer was built, of these versions; or one was not, as a ConfigError's
    parts.
    """

    versions: tuple[str, ...] = ()
    where: str = ""
    rule: str = ""
    remedy: str = ""


class Job(Struct, frozen=True, array_like=True):
    """One answer for one scorer, by its number in the setup."""

    scorer: int
    answer: Answer


class Reply(Struct, frozen=True, array_like=True):
    """Two finite numbers and what a teacher said, or the error of a fault."""

    reward: float = 0.0
    outcome: float = 0.0
    reason: str = ""
    detail: str = ""
    teaching: Teaching | None = None


def pack(frame: Struct) -> bytes:
    """The frame with its length in front."""
    payload = msgspec.json.encode(frame)
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def length(header: bytes) -> int:
    """How many bytes follow the header."""
    return int.from_bytes(header, "little")


def unpack(payload: bytes, kind: type[F]) -> F:
    """The frame, its header cut off."""
    return msgspec.json.decode(payload, type=kind)

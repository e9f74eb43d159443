"""Step records as they lie on disk: for training, which writes and replays them, and for scoring
what they hold again. Torch-free.

A record is a plan, sealed by a checksum, and the cargo beside it, a file from each rank. What is
planned is training's: here a plan only says where the cargo of its groups lies.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from pipeline.errors import DecodeError, SluiceError
from pipeline.messages import Member, Prompt

TAG = "record/2"
FOLDER = "steps"
T = TypeVar("T")
_NAME = re.compile(r"(\d{8,})\.e(\d+)")


class Bytes(Struct, frozen=True, array_like=True):
    """Where something stands in a file, and the CRC-32 of it."""

    start: int
    size: int
    crc: int


class Place(Struct, frozen=True, array_like=True):
    """Where a group's cargo lies: in which rank's file, its prompt and each member there."""

    rank: int
    prompt: Bytes
    members: dict[int, Bytes]


class Recorded(Struct, frozen=True, kw_only=True, tag=TAG):
    """Of a plan only this: its batch, and where the groups lie that its step consumed, if kept."""

    batch: int
    places: dict[str, Place] = {}


class _Sealed(Struct, frozen=True, array_like=True):
    """A plan as it lies on disk, behind its CRC-32."""

    crc: int
    plan: bytes


_encoder, _sealed = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Sealed)


def plans(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Number and epoch of each plan in a folder of records, in no order."""
    for path in folder.glob("*.e*") if folder.exists() else ():
        if match := _NAME.fullmatch(path.name):
            yield int(match[1]), int(match[2]), path


def newest(folder: Path) -> dict[int, Path]:
    """The plan of each batch: of several with one number the highest epoch counts. Ascending."""
    return {number: path for number, _, path in sorted(plans(folder))}


def seal(plan: Struct) -> bytes:
    """A plan as it is to be written."""
    raw = _encoder.encode(plan)
    return _encoder.encode(_Sealed(zlib.crc32(raw), raw))


def unseal(path: Path, kind: type[T]) -> T:
    """A plan that was written; raises SluiceError for one that is damaged, or of another schema,
    and OSError.
    """
    raw = path.read_bytes()
    try:
        sealed = _sealed.decode(raw)
        if zlib.crc32(sealed.plan) != sealed.crc:
            raise SluiceError(f"{path} is damaged: it is not what was written there")
        return msgspec.msgpack.decode(sealed.plan, type=kind)
    except msgspec.MsgspecError as exc:
        raise DecodeError(f"{path}: no record that this release can read, {TAG} ({exc})") from exc


def file_of(stem: str, rank: int) -> Path:
    """What a rank has of the cargo of the record at `stem`."""
    return Path(f"{stem}.r{rank}")


class Lying:
    """Cargo on disk, as `Place`s say; to be closed."""

    def __init__(self, stem: str, places: Mapping[str, Place]) -> None:
        self._stem, self._places = stem, places
        self._files: dict[int, BinaryIO] = {}
        self._prompts: dict[str, Prompt] = {}

    def member(self, group: str, member: int) -> tuple[Prompt, Member]:
        """A member and its group's prompt. Raises SluiceError where they cannot be read, or are not
        what was written."""
        place = self._places[group]
        if group not in self._prompts:
            self._prompts[group] = self._get(place.rank, place.prompt, Prompt)
        return self._prompts[group], self._get(place.rank, place.members[member], Member)

    def close(self) -> None:
        """No more is read."""
        for file in self._files.values():
            file.close()

    def _get(self, rank: int, at: Bytes, kind: type[T]) -> T:
        path = file_of(self._stem, rank)
        try:
            if rank not in self._files:
                self._files[rank] = path.open("rb")
            self._files[rank].seek(at.start)
            raw = self._files[rank].read(at.size)
        except OSError as exc:
            raise SluiceError(
                f"{path} cannot be read ({exc.strerror}): all ranks need one folder of the run"
            ) from exc
        if zlib.crc32(raw) != at.crc:
            raise SluiceError(
                f"{path} is damaged: what it has at byte {at.start} is not what was written there"
            )
        try:
            return msgspec.msgpack.decode(raw, type=kind)
        except msgspec.MsgspecError as exc:
            raise DecodeError(f"{path}: no cargo that this release can read ({exc})") from exc

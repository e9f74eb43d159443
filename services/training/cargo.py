"""Where cargo lies between the bus and a step: with the rank that read it, then on disk.

A group's cargo is read from the bus by one rank, which keeps it and gives a `Brief`. For a step
each rank writes the groups that it has to a file of its own, beside the step's record, and reads
from all of these files what it is to step on: so a replay goes the same way. The folder is one for
all ranks. What is read by which rank is in `ranks`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from pipeline import disk
from pipeline.errors import DecodeError, SluiceError
from pipeline.messages import Group, Member, Prompt
from services.training.briefs import Brief, brief

Fetch = Callable[[Sequence[str]], list[Group]]
T = TypeVar("T")


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


class Cargo:
    """What this rank has read from the bus, and is neither on disk nor refused."""

    def __init__(self, fetch: Fetch, *, vocabulary: int) -> None:
        """`fetch` reads whole groups; members are checked for a model of so many ids."""
        self._fetch, self._vocabulary = fetch, vocabulary
        self._groups: dict[str, Group] = {}

    def read(self, groups: Sequence[str]) -> list[Brief]:
        """From the bus, in order; without those that are closed, or cannot be read."""
        found = self._fetch(groups) if groups else []
        self._groups |= {group.prompt.group: group for group in found}
        return [brief(group, self._vocabulary) for group in found]

    def drop(self, groups: Iterable[str]) -> None:
        """They were refused."""
        for group in groups:
            self._groups.pop(group, None)

    def write(self, stem: str, groups: Sequence[str], rank: int) -> dict[str, Place]:
        """These groups, to this rank's file, synced. Raises SluiceError where it cannot be."""
        path = file_of(stem, rank)
        try:
            with disk.new_file(path) as partial, partial.open("wb") as file:
                return {name: _put(file, self._groups.pop(name), rank) for name in groups}
        except OSError as exc:
            raise SluiceError(
                f"{path} cannot be written ({exc.strerror}): no step was made; all ranks need one"
                " folder of the run"
            ) from exc


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


def _put(file: BinaryIO, group: Group, rank: int) -> Place:
    members = {m: _put_one(file, member) for m, member in group.members.items()}
    return Place(rank, _put_one(file, group.prompt), members)


def _put_one(file: BinaryIO, message: Struct) -> Bytes:
    raw = msgspec.msgpack.encode(message)
    return Bytes(file.tell(), file.write(raw), zlib.crc32(raw))

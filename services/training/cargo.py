"""Where cargo lies between the bus and a step: with the rank that read it, then on disk.

A group's cargo is read from the bus by one rank, which keeps it and gives a `Brief`. For a step
each rank writes the groups that it has to a file of its own, beside the step's record, and reads
from all of these files what it is to step on: so a replay goes the same way. The folder is one for
all ranks. What is read by which rank is in `ranks`, and how what lies there is read in
`pipeline.recorded`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from pipeline import disk
from pipeline.errors import SluiceError
from pipeline.messages import Group
from pipeline.recorded import Bytes, Place, file_of
from services.training.briefs import Brief, brief

Fetch = Callable[[Sequence[str]], list[Group]]


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


def _put(file: BinaryIO, group: Group, rank: int) -> Place:
    members = {m: _put_one(file, member) for m, member in group.members.items()}
    return Place(rank, _put_one(file, group.prompt), members)


def _put_one(file: BinaryIO, message: Struct) -> Bytes:
    raw = msgspec.msgpack.encode(message)
    return Bytes(file.tell(), file.write(raw), zlib.crc32(raw))

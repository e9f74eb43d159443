"""The step record: all that a step consumes, on disk before the optimizer moves. † torch

The plan is one file a batch, named by its number and the epoch of the trainer that made it; the
cargo is beside it, a file from each rank (`cargo`), all there before the plan is. It has no layout
of packs, and any number of ranks may read it: what a batch is made of follows from it and from
RUN.toml. With `record = "off"` the plan only says what became of the groups, and the cargo goes
once it was stepped on. Reading records back into a trainer is in `recovery`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline import disk
from pipeline.errors import DecodeError, SluiceError
from pipeline.ledger import Fates
from services.training.batch import Batch
from services.training.briefs import Brief
from services.training.cargo import Place
from services.training.considered import skipped
from services.training.planned import Imitated

_NAME = re.compile(r"(\d{8,})\.e(\d+)")


class Record(Struct, frozen=True, kw_only=True, tag="record/2"):
    """Batch `batch`, counted from 1, as planned when the trainer stood at `step` and `version`.

    `steps` has the step of every version that the groups' spans name; `fates` is what the commit
    says of each group if the step is taken. Without `groups` its step cannot be made again; their
    cargo lies at `places`. `examples` were imitated in it.
    """

    batch: int
    epoch: int
    step: int
    version: int
    steps: dict[int, int]
    groups: tuple[Brief, ...]
    fates: dict[str, Fates]
    places: dict[str, Place] = {}
    examples: tuple[Imitated, ...] = ()

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.batch:08d}.e{self.epoch}"


def plan(batch: Batch, *, number: int, epoch: int, version: int) -> Record:
    """The record of a batch that is about to be stepped; of its cargo nothing is written yet."""
    freshness = batch.rules.freshness
    spans = (s for g in batch.groups for m in g.members.values() for s in m.spans)
    named = {span.version for span in spans}
    return Record(
        batch=number,
        epoch=epoch,
        step=freshness.step,
        version=version,
        steps={v: step for v, step in sorted(freshness.steps.items()) if v in named},
        groups=batch.groups,
        fates=batch.fates,
        examples=batch.examples,
    )


class _Sealed(Struct, frozen=True, array_like=True):
    """A plan as it lies on disk, behind its CRC-32."""

    crc: int
    plan: bytes


_encoder = msgspec.msgpack.Encoder()
_sealed, _decoder = msgspec.msgpack.Decoder(_Sealed), msgspec.msgpack.Decoder(Record)


class Outcome(NamedTuple):
    """What was, or is to be, committed of a record."""

    batch: int
    changed: bool
    fates: dict[str, Fates]


class Records:
    """`steps/` of a run. Of several records with one number the highest epoch counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "steps"

    def begin(self, record: Record) -> str:
        """Returns what the names of its files begin with; the folder is there from now on.

        Raises SluiceError where it cannot be.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            why = f"{self.folder} cannot be made ({exc.strerror}): no step was made"
            raise SluiceError(why) from exc
        return self.stem(record)

    def stem(self, record: Record) -> str:
        """What the names of its files begin with."""
        return str(self.folder / record.name)

    def write(self, record: Record, *, whole: bool) -> None:
        """The plan of a record whose cargo is written; `whole`: so that it can be stepped again.

        Raises SluiceError where it cannot be written.
        """
        path = self.folder / record.name
        if not whole:
            record = replace(record, groups=(), places={}, examples=())
        raw = _encoder.encode(record)
        try:
            disk.write(path, _encoder.encode(_Sealed(zlib.crc32(raw), raw)))
        except OSError as exc:
            raise SluiceError(
                f"{path} cannot be written ({exc.strerror}): no step was made"
            ) from exc

    def numbers(self) -> list[int]:
        """The batches that are recorded, ascending."""
        return sorted(self._newest())

    def read(self, batch: int) -> Record:
        """One record; raises SluiceError for one that is damaged, or of another schema."""
        return _read(self._newest()[batch])

    def after(self, batch: int) -> Iterator[Record]:
        """Those with a higher number, ascending."""
        newest = self._newest()
        for number in sorted(number for number in newest if number > batch):
            yield _read(newest[number])

    def forget(self, after: int) -> None:
        """Remove those with a higher number: what they led to is lost. Raises SluiceError."""
        for path in [path for number, _, path in self._all() if number > after]:
            _remove([path, *_cargo_of(path)])  # the plan first: cargo alone is no record

    def sweep(self) -> None:
        """Remove cargo that no step is made from: its trainer was killed before there was a plan,
        or another has planned that batch anew since. Raises SluiceError.
        """
        planned = {path.name for path in self._newest().values()}
        _remove([p for p in self.folder.glob("*.e*.r*") if p.stem not in planned])

    def forget_cargo(self, record: Record) -> None:
        """It was stepped on, and is not to be once more. Raises SluiceError."""
        _remove(_cargo_of(self.folder / record.name))

    def outcomes(self, after: int, *, upto: int, since: int, step: int) -> Iterator[Outcome]:
        """What became of each batch above `after`, which stood at step `since`, and up to `upto`,
        which led to `step`.

        A step was taken where the next record stands one higher. Of a batch whose record was lost
        with the disk, only that can be said, and nothing of its groups.
        """
        recorded = [number for number in self.numbers() if number > after]
        stood = {number: self.read(number).step for number in recorded}
        for number in range(after + 1, upto + 1):
            led_to = next((stood[later] for later in recorded if later > number), step)
            changed = since < led_to
            since += changed
            fates = self.read(number).fates if number in stood else {}
            yield Outcome(number, changed, fates if changed else skipped(fates))

    def _newest(self) -> dict[int, Path]:
        return {number: path for number, _, path in sorted(self._all())}

    def _all(self) -> Iterator[tuple[int, int, Path]]:
        """Number and epoch of each file."""
        for path in self.folder.glob("*.e*") if self.folder.exists() else ():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), int(match[2]), path


def _cargo_of(path: Path) -> list[Path]:
    return [*path.parent.glob(f"{path.name}.r*")]


def _remove(paths: Sequence[Path]) -> None:
    try:
        for path in paths:
            path.unlink()
    except OSError as exc:
        raise SluiceError(f"{exc.filename} cannot be removed ({exc.strerror})") from exc


def _read(path: Path) -> Record:
    try:
        sealed = _sealed.decode(path.read_bytes())
        if zlib.crc32(sealed.plan) != sealed.crc:
            raise SluiceError(f"{path} is damaged: it is not what was written there")
        return _decoder.decode(sealed.plan)
    except msgspec.MsgspecError as exc:
        tag = Record.__struct_config__.tag
        raise DecodeError(f"{path}: no record that this release can read, {tag} ({exc})") from exc

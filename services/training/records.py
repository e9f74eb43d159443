"""The step record: all that a step consumes, on disk before the optimizer moves. † torch

The plan is one file a batch, named by its number and the epoch of the trainer that made it; the
cargo is beside it, a file from each rank (`cargo`), all there before the plan is. It has no layout
of packs, and any number of ranks may read it: what a batch is made of follows from it and from
RUN.toml. With `record = "off"` the plan only says what became of the groups, and the cargo goes
once it was stepped on. Reading records back into a trainer is in `recovery`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pipeline import disk
from pipeline.errors import SluiceError
from pipeline.ledger import Fates
from pipeline.recorded import FOLDER, TAG, Place, newest, plans, seal, unseal
from services.training.batch import Batch
from services.training.briefs import Brief
from services.training.considered import skipped
from services.training.planned import Imitated


class Record(Struct, frozen=True, kw_only=True, tag=TAG):
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


class Outcome(NamedTuple):
    """What was, or is to be, committed of a record."""

    batch: int
    changed: bool
    fates: dict[str, Fates]


class Records:
    """`steps/` of a run. Of several records with one number the highest epoch counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

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
        try:
            disk.write(path, seal(record))
        except OSError as exc:
            raise SluiceError(
                f"{path} cannot be written ({exc.strerror}): no step was made"
            ) from exc

    def numbers(self) -> list[int]:
        """The batches that are recorded, ascending."""
        return [*newest(self.folder)]

    def read(self, batch: int) -> Record:
        """One record; raises SluiceError for one that is damaged, or of another schema."""
        return unseal(newest(self.folder)[batch], Record)

    def after(self, batch: int) -> Iterator[Record]:
        """Those with a higher number, ascending."""
        for number, path in newest(self.folder).items():
            if number > batch:
                yield unseal(path, Record)

    def forget(self, after: int) -> None:
        """Remove those with a higher number: what they led to is lost. Raises SluiceError."""
        for path in [path for number, _, path in plans(self.folder) if number > after]:
            _remove([path, *_cargo_of(path)])  # the plan first: cargo alone is no record

    def sweep(self) -> None:
        """Remove cargo that no step is made from: its trainer was killed before there was a plan,
        or another has planned that batch anew since. Raises SluiceError.
        """
        planned = {path.name for path in newest(self.folder).values()}
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


def _cargo_of(path: Path) -> list[Path]:
    return [*path.parent.glob(f"{path.name}.r*")]


def _remove(paths: Sequence[Path]) -> None:
    try:
        for path in paths:
            path.unlink()
    except OSError as exc:
        raise SluiceError(f"{exc.filename} cannot be removed ({exc.strerror})") from exc

"""Where a run's weights lie on disk: its newest checkpoint, or a version that was kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from pipeline import grades
from pipeline.digests import MARK, verify
from pipeline.errors import ConfigError, SluiceError

_CHECKPOINT = re.compile(r"(\d+)\.e(\d+)")
MODEL = "model"


class Source(NamedTuple):
    """A folder in Hugging Face format, and which weights are in it.

    `digests` are those that its files were written with, by their path beside it, where they are
    known: those of a checkpoint.
    """

    model: Path
    version: int
    step: int
    digests: Mapping[str, str] = {}

    def check(self) -> None:
        """Raises SluiceError where a file of the model is not what was written."""
        verify(self.model.parent, self.digests)


class _Mark(Struct):
    """Of a checkpoint, or a line of `kept.jsonl`; what else stands there is not read."""

    version: int
    step: int
    files: dict[str, str] = {}


def find(folder: Path, version: int | None) -> Source:
    """The version that was kept, or the newest checkpoint for None; `folder` is the run's.

    Raises ConfigError where there is none.
    """
    if version is not None:
        return _kept(folder, version)
    for path in reversed(_checkpoints(folder)):
        try:
            mark = _read(path / MARK)
        except FileNotFoundError:  # it is being written, or a run that goes on has removed it
            continue
        written = {name: d for name, d in mark.files.items() if name.startswith(f"{MODEL}/")}
        return Source(path / MODEL, mark.version, mark.step, written)
    remedy = "wait for the first, check the name (--set name=NAME) and the folder you are in"
    raise ConfigError(str(folder), None, rule="has no checkpoint", remedy=remedy)


def best_of(folder: Path, version: int | None = None) -> int:
    """The version that did best on held-out prompts so far.

    Raises ConfigError where none was graded, or where another `version` is asked for.
    """
    if version is not None:
        remedy = "leave out one of the two"
        raise ConfigError("--best", version, rule="excludes --version", remedy=remedy)
    found = grades.read(folder).best
    if found is None:
        remedy = "grade what it kept first: sluice evaluate"
        raise ConfigError("--best", None, rule=f"nothing was graded in {folder}", remedy=remedy)
    return found


def _checkpoints(folder: Path) -> list[Path]:
    """By batch and epoch; one is whole if it has its mark."""
    found = []
    for path in (folder / "checkpoints").glob("*"):
        if name := _CHECKPOINT.fullmatch(path.name):
            found.append(((int(name[1]), int(name[2])), path))
    return [path for _, path in sorted(found)]


def _kept(folder: Path, version: int) -> Source:
    weights = folder / "weights"
    try:
        lines = (weights / "kept.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    marks = {mark.version: mark for mark in (_decode(line, weights) for line in lines)}
    if version not in marks:
        known = ", ".join(map(str, sorted(marks))) or "none: [evaluation] says which are"
        rule = f"was not kept by {folder}"
        raise ConfigError("--version", version, rule=rule, remedy=f"choose one of those ({known})")
    return Source(weights / f"v{version}", version, marks[version].step)


def _read(path: Path) -> _Mark:
    return _decode(path.read_bytes(), path)


def _decode(text: bytes, where: Path) -> _Mark:
    try:
        return msgspec.json.decode(text, type=_Mark)
    except msgspec.MsgspecError as exc:
        raise SluiceError(f"{where} cannot be read: {exc}") from exc

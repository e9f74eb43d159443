"""JSON Lines: every line is checked when the file is opened, and read when it is asked for."""

from __future__ import annotations

import hashlib
import os
import weakref
from array import array
from typing import Any

import msgspec

from pipeline.errors import ConfigError, SluiceError
from pipeline.protocols import Example, Text
from services.prompting.datasets.checks import fault_of


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """What one line must hold; other fields are the user's own and stay unread."""

    prompt: Text
    reference: Any
    task: str = ""


_decoder = msgspec.json.Decoder(_Line)


class Jsonl:
    """A file of JSON objects, one a line: `prompt`, `reference`, and if need be a `task`.

    A prompt is a text, or a list of chat messages, {"role": …, "content": …}. Opening it reads and
    checks every line; what stays in memory is where each one stands. Empty lines are skipped.
    Raises ConfigError that names the line at fault.
    """

    def __init__(self, *, path: str) -> None:
        self._path = path
        self._file = _open(path)
        weakref.finalize(self, os.close, self._file)
        self._starts = array("q")
        self._ends = array("q")
        self._numbers = array("q")  # of the lines, from 1, as an editor shows them
        self._digest = hashlib.blake2b(digest_size=16)
        self._index()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Example:
        """The example; raises SluiceError where the file was changed since it was opened."""
        start = self._starts[index]
        raw = os.pread(self._file, self._ends[index] - start, start)
        try:
            line = _decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            where = f"{self._path}, line {self._numbers[index]}"
            raise SluiceError(f"{where}: the file was changed while the run went on") from exc
        return Example(prompt=line.prompt, reference=line.reference, task=line.task)

    def digest(self) -> str:
        """BLAKE2b of the file's bytes as they were when it was opened."""
        return self._digest.hexdigest()

    def _index(self) -> None:
        start = 0
        with open(self._file, "rb", closefd=False) as lines:
            for number, raw in enumerate(lines, start=1):
                self._digest.update(raw)
                if raw.strip():
                    _check(raw, f"{self._path}, line {number}")
                    self._starts.append(start)
                    self._ends.append(start + len(raw))
                    self._numbers.append(number)
                start += len(raw)
        if not self._starts:
            raise ConfigError(
                self._path,
                None,
                rule="there is no example in this file",
                remedy='write one JSON object a line, {"prompt": "…", "reference": …}',
            )


def _open(path: str) -> int:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return os.dup(file.fileno())
    except OSError as exc:
        raise ConfigError(
            path,
            None,
            rule=f"cannot be read ({exc.strerror})",
            remedy="name a file of JSON lines; relative paths start where sluice was called",
        ) from exc


def _check(raw: bytes, where: str) -> None:
    shown = raw.decode(errors="replace").strip()
    try:
        line = _decoder.decode(raw)
    except msgspec.ValidationError as exc:
        rule, _, field = str(exc).partition(" - at `$.")
        rule = f"{field.rstrip('`')}: {rule}" if field else rule
        remedy = 'a line holds {"prompt": text or chat, "reference": any, "task": text or absent}'
        raise ConfigError(where, shown, rule=rule, remedy=remedy) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        remedy = "write one JSON object a line, in UTF-8 and without a byte order mark"
        raise ConfigError(where, shown, rule=f"not JSON ({exc})", remedy=remedy) from exc
    if fault := fault_of(line.prompt):
        raise ConfigError(where, shown, rule=fault, remedy="correct the line, or cut it")

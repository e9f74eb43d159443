"""What a step depends on besides the model, its optimizer and the step's record. † torch

A running mean of rewards, say: it has a name, and a place in every checkpoint, in one file that
holds its tensors and plain values. Rank 0 alone remembers. What each rank has a copy of, as of the
reference model, is in the state of its back end: see `reference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.errors import SluiceError

FOLDER, PLAIN = "others", "plain"


class Memory(NamedTuple):
    """Plain values, as JSON can say them, and tensors."""

    plain: dict[str, Any]
    tensors: Mapping[str, Tensor]


@runtime_checkable
class Remembers(Protocol):
    """Has something that changes with the steps, and that the next ones depend on."""

    def memory(self) -> Memory:
        """As it is now; what training changes afterwards is copied."""

    def recall(self, memory: Memory) -> None:
        """Go on from there."""


def remembering(**parts: object) -> dict[str, Remembers]:
    """Those of the parts, by name, that have something to remember."""
    return {name: part for name, part in parts.items() if isinstance(part, Remembers)}


def write(folder: Path, memories: Mapping[str, Memory]) -> None:
    """A file for each, into a folder that has none."""
    for name, memory in memories.items():
        (folder / FOLDER).mkdir(exist_ok=True)
        plain = {PLAIN: msgspec.json.encode(memory.plain).decode()}
        save_file({**memory.tensors}, _file(folder, name), metadata=plain)


def recall(folder: Path, those: Mapping[str, Remembers]) -> None:
    """Raises SluiceError where one has no file, or one that cannot be read."""
    for name, one in those.items():
        try:
            opened: Any = safe_open(_file(folder, name), framework="pt")
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            plain = msgspec.json.decode(opened.metadata()[PLAIN], type=dict[str, Any])
        except (OSError, SafetensorError, KeyError, msgspec.DecodeError) as exc:
            raise SluiceError(
                f"{_file(folder, name)} cannot be read ({exc}): this run needs what {name} was"
            ) from exc
        one.recall(Memory(plain, tensors))


def _file(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name}.safetensors"

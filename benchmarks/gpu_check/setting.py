"""What every part of the check is given, and what it finds. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

DEVICES = ("cuda", "cpu")
FINDINGS = "GPU_CHECK_FINDINGS"
"""Environment: the file that a part writes what it finds to."""


class Failed(Exception):
    """A part cannot go on: its line says why."""


class Setting(Struct, frozen=True, kw_only=True):
    """Where the check runs, and where weights may lie; a rehearsal on a CPU is smaller."""

    device: str
    folder: str
    shared: str

    @property
    def rehearses(self) -> bool:
        """Whether there is no GPU."""
        return self.device == "cpu"


class Finding(Struct, frozen=True, kw_only=True):
    """One line: what was found, and what to do where it did not hold. `held` None: skipped."""

    claim: str
    held: bool | None
    remedy: str = ""
    figures: dict[str, Any] = {}


def told(finding: Finding) -> None:
    """Write it down at once: what a part has found stays found if it fails later."""
    with Path(os.environ[FINDINGS]).open("ab") as file:
        file.write(msgspec.json.encode(finding) + b"\n")


def found_in(path: Path) -> list[Finding]:
    """What a part has written there."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Finding) for line in lines]

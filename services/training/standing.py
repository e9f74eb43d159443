"""Where a trainer stands in its run."""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """Batches stepped, or skipped; optimizer steps taken; the version that they made."""

    batch: int = 0
    step: int = 0
    version: int = -1

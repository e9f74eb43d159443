"""The machine that this process runs on, as far as the work is cut to its size."""

from __future__ import annotations

import os


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

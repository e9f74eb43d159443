"""The machine that this process runs on, as far as the work is cut to its size."""

from __future__ import annotations

import os


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> None:
    """One thread for a process's matrix work, unless OMP_NUM_THREADS says otherwise.

    To be called before torch is imported. Processes that share cores slow each other down by far
    more than a second thread gains.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")

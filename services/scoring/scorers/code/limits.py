"""How much of a machine one program may have."""

from __future__ import annotations

import math
from typing import NamedTuple

FILE_BYTES = 64 * 2**20
"""Of a file that it writes, and of all its files together."""
OUTPUT_BYTES = 1_000_000
"""Of what it prints; more ends it."""
DESCRIPTORS = 64
OWN_PROCESSES = 1
"""Besides the program's: the sandbox's first process, which buries the others."""


class Limits(NamedTuple):
    """Seconds of one test and of all of a program's; bytes of memory; processes with threads."""

    test_seconds: float
    all_seconds: float
    memory_bytes: int
    processes: int

    @property
    def rlimits(self) -> tuple[int, ...]:
        """As `inside.launch` takes them: AS, CPU, FSIZE, NOFILE, NPROC."""
        cpu = math.ceil(self.all_seconds) + 1
        processes = self.processes + OWN_PROCESSES
        return self.memory_bytes, cpu, FILE_BYTES, DESCRIPTORS, processes

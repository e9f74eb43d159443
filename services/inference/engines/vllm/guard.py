"""Ends vLLM's processes with the service that owns them, however that ends.

vLLM's engine core does not look whether its owner lives, and its workers look at the core alone. So
each worker watches the owner, and takes the core with it. Torch-free.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress

OWNER = "SLUICE_VLLM_OWNER"
"""Environment: the process that owns what is started with it."""


def own() -> None:
    """Whatever this process starts from now on ends with it, once it watches."""
    os.environ[OWNER] = str(os.getpid())


def watch() -> None:
    """In a process of vLLM's: begin to look after the owner, if there is one."""
    owner = int(os.environ.get(OWNER, "0"))
    if owner and owner != os.getpid():
        threading.Thread(target=_end_with, args=(owner, os.getppid()), daemon=True).start()


def _end_with(owner: int, parent: int) -> None:
    """Wait for the owner's end, then end the core, which is the parent or this process itself."""
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(owner)
        select.select([watched], [], [])
    if parent != owner and os.getppid() == parent:
        with suppress(ProcessLookupError):
            os.kill(parent, signal.SIGKILL)
    os._exit(1)

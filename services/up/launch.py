"""Starts the ranks of one trainer on this machine: python -m services.up.launch RANKS COMMAND…

It becomes rank 0 itself, under the same process id, so that whoever watches and signals this
process watches the trainer; the other ranks are its children and die with it. All find in their
environment what torchrun would have put there. With torchrun each rank would lead a session of its
own, which may outlive it, and its exit code and last line would say nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from services.up.spawn import tie


def main(ranks: int, command: Sequence[str]) -> None:
    """Does not return."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    for rank in range(1, ranks):
        subprocess.Popen(
            command, env=_environment(rank, shared), preexec_fn=tie(os.getpid()), close_fds=True
        )
    os.execve(command[0], [*command], _environment(0, shared))


def _environment(rank: int, shared: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

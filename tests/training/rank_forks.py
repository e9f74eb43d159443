"""The ranks of a job, each a process of its own that is there at once.

They are forks of one server, the standard library's, that has imported torch, DeepSpeed and the
cases for all of them. Each finds in its environment what torchrun would have put there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PRELOADED = ["services.training.backends.deepspeed", "rank_of_a_job"]

_context = get_context("forkserver")


class Rank:
    """A process of a job, in `folder`. What it says, on either stream, is in a file there."""

    def __init__(self, own: dict[str, str], folder: Path, act: Callable[..., Any], *args: Any):
        self.output = folder / f"rank{own['RANK']}-of-{own['WORLD_SIZE']}.log"
        self.output.touch()
        words = (own, str(self.output), act, args)
        self.process = _context.Process(target=_become, args=words, daemon=True)
        self.process.start()
        self._lines = self.output.open()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    def await_line(self, line: str) -> None:
        """The next one that is this."""
        while (said := self._lines.readline()) != f"{line}\n":
            if not said:
                assert self.process.is_alive(), self.output.read_text()
                time.sleep(0.02)

    def end(self, seconds: float) -> int | None:
        """Its exit code, once it has ended; None where that takes longer."""
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self) -> None:
        """Even if it is stopped, and for good."""
        self.process.kill()
        self.process.join()


def forked(size: int, folder: Path, act: Callable[..., Any], *arguments: Any) -> list[Rank]:
    """A job of so many ranks that each call `act`, a function of a module."""
    _serve()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared["WORLD_SIZE"] = str(size)
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [Rank(shared | place, folder, act, *arguments) for place in places]


def _serve() -> None:
    """Does nothing where the server is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


def _become(own: dict[str, str], output: str, act: Callable[..., Any], args: Any) -> None:
    for key in [key for key in os.environ if key.startswith("PYTEST")]:
        del os.environ[key]
    os.environ.update(own)
    os.chdir(Path(output).parent)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    act(*args)

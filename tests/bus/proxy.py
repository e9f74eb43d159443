"""A bad network: a proxy before a server's socket that cuts, loses or delays what it carries."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

Fault = Literal["none", "refuse", "lose the request", "cut the reply", "lose the reply", "delay"]
DELAY_SECONDS = 2.0


class Proxy:
    """`faults` are spent one a request; after them all goes well."""

    def __init__(self, server: Path, path: Path) -> None:
        self.server, self.path, self.url = server, path, f"unix://{path}"
        self.faults: list[Fault] = []
        self.met: list[Fault] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(str(self.server))
            while request := client.recv(1 << 20):
                fault = self._next()
                if fault in ("refuse", "lose the request"):
                    return
                server.sendall(request)
                reply = server.recv(1 << 20)
                if fault == "lose the reply":
                    return
                if fault == "cut the reply":
                    client.sendall(reply[: len(reply) // 2])
                    return
                if fault == "delay":
                    time.sleep(DELAY_SECONDS)
                client.sendall(reply)

    def _next(self) -> Fault:
        if not self.faults:
            return "none"
        self.met.append(self.faults[0])
        return self.faults.pop(0)


@contextmanager
def between(server: Path, path: Path) -> Iterator[Proxy]:
    proxy = Proxy(server, path)
    try:
        yield proxy
    finally:
        proxy.close()

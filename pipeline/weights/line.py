"""What an engine and the door of a direct transport say to each other, and the line between them.

Whole messages over one TCP connection, in order, with a limit on every wait. Who says what when is
in `door` (the trainer's side) and `visit` (the engine's).
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pipeline.errors import WeightsError

CONNECT_SECONDS = 10.0
MOST_BYTES = 1 << 28
"""Of one message. Names and shapes take a few megabytes; whoever says more is a stranger."""
_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A host that is gone hangs up no line: asked after 15 idle seconds, given up 15 later."""

Act = Literal["init", "start", "update", "finish"]
"""What a door has an engine do, in vLLM's words: `init_weight_transfer_engine` and so on."""


class Ask(Struct, frozen=True, kw_only=True, tag="ask/1"):
    """An engine wants a version; `workers` processes hold its model, on these `devices`."""

    token: str
    version: int
    boot: str
    workers: int = 1
    devices: tuple[str, ...] = ()


class Ready(Struct, frozen=True, kw_only=True, tag="ready/1"):
    """The door has the version, and can send it to this engine."""

    version: int


class Go(Struct, frozen=True, kw_only=True, tag="go/1"):
    """The engine is between two forward passes: send now."""

    version: int


class Call(Struct, frozen=True, kw_only=True, tag="call/1"):
    """The door has the engine do something; `info` is what vLLM's method of that name takes."""

    act: Act
    info: dict[str, Any] = {}


class Done(Struct, frozen=True, kw_only=True, tag="done/1"):
    """The engine did it, or says why not."""

    error: str = ""


class Sent(Struct, frozen=True, kw_only=True, tag="sent/1"):
    """The version is in the engine, whole."""

    version: int


class Refused(Struct, frozen=True, kw_only=True, tag="refused/1"):
    """The door does not do what it was asked for, or could not."""

    reason: str


Said = Ask | Ready | Go | Call | Done | Sent | Refused


class Line:
    """One end of a connection. One thread speaks at a time; `close` may come from any."""

    def __init__(self, sock: socket.socket, peer: str, *, seconds: float) -> None:
        """`peer` is how the other end is named in errors; `seconds` how long it may be silent."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _ALIVE.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer, self.seconds = peer, seconds
        self._sock, self._closed = sock, threading.Event()
        self._decoder = msgspec.msgpack.Decoder(Said)

    def say(self, message: Said) -> None:
        """Raises WeightsError where the other end is gone, or does not listen."""
        body = msgspec.msgpack.encode(message)
        self._within(self.seconds)
        try:
            self._sock.sendall(struct.pack(">I", len(body)) + body)
        except OSError as exc:
            raise WeightsError(self._why(exc, self.seconds)) from exc

    def hear(self, within: float | None = None) -> Said:
        """The next message, within so many seconds, by default the line's own.

        Raises WeightsError where the other end is gone, silent, or speaks another tongue.
        """
        return self._hear(self.seconds if within is None else min(within, self.seconds))

    def hear_whenever(self) -> Said:
        """The next message, for as long as the connection stands; raises as `hear` does."""
        return self._hear(None)

    def _hear(self, wait: float | None) -> Said:
        self._within(wait)
        try:
            (size,) = struct.unpack(">I", self._exactly(4))
            if size > MOST_BYTES:
                raise WeightsError(f"{self.peer} does not speak as an engine or a door does")
            return self._decoder.decode(self._exactly(size))
        except OSError as exc:
            raise WeightsError(self._why(exc, wait)) from exc
        except msgspec.MsgspecError as exc:
            raise WeightsError(f"{self.peer} is of another release: {exc}") from exc

    def close(self) -> None:
        """Hang up; whoever waits at either end hears it."""
        self._closed.set()
        hang_up(self._sock)

    def _within(self, seconds: float | None) -> None:
        if self._closed.is_set():
            raise WeightsError(f"the line to {self.peer} is closed")
        self._sock.settimeout(seconds)

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._sock.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError("it hung up")
            parts += part
        return bytes(parts)

    def _why(self, exc: OSError, seconds: float | None) -> str:
        if isinstance(exc, TimeoutError) and seconds is not None:
            return f"{self.peer} said nothing for {seconds:g} s"
        return f"{self.peer} is gone: {exc}"


def hang_up(sock: socket.socket) -> None:
    """Closed alone it would stay open for whoever waits at it."""
    with suppress(OSError):  # it was gone already
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def dial(host: str, port: int, *, seconds: float) -> Line:
    """A line to the door there; raises WeightsError that names it within CONNECT_SECONDS."""
    peer = f"the trainer's door at {host}:{port}"
    try:
        sock = socket.create_connection((host, port), timeout=min(seconds, CONNECT_SECONDS))
    except OSError as exc:
        raise WeightsError(
            f"{peer} cannot be reached ({exc}): it must be open from here, see weights.host and"
            " weights.port"
        ) from exc
    return Line(sock, peer, seconds=seconds)

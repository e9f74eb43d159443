"""One HTTP request and its response, over the standard library's server: whole, or as events."""

from __future__ import annotations

import select
import socket
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

from services.inference.openai.rejections import Rejection

MOST_BYTES = 8 << 20
_CHUNKED = {"Transfer-Encoding": "chunked", "Cache-Control": "no-cache"}


class Exchange:
    """A request as it came; each response ends the connection."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler
        self.method, self.path = handler.command, unquote(handler.path.partition("?")[0])
        self.has_begun = False

    def body(self) -> bytes:
        """Raises Rejection for what is no JSON by its header, or too long.

        The header is asked for lest a page of any site could post here from a user's browser.
        """
        headers = self._handler.headers
        if not (length := headers.get("Content-Length", "")).isdecimal():
            raise Rejection(411, "Content-Length is needed.")
        if len(length) > 18 or int(length) > MOST_BYTES:  # of thousands of digits none is made
            raise Rejection(413, f"The body may have {MOST_BYTES} bytes.")
        body = self._handler.rfile.read(int(length))
        if headers.get_content_type() != "application/json":
            raise Rejection(415, "Content-Type has to be application/json.")
        return body

    @property
    def key(self) -> str:
        """What the client gave as its API key."""
        kind, _, key = self._handler.headers.get("Authorization", "").partition(" ")
        return key.strip() if kind.lower() == "bearer" else ""

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """The whole response, of JSON."""
        self._begin(status, {"Content-Length": str(len(body)), **(headers or {})})
        self._handler.wfile.write(body)

    def event(self, data: bytes) -> None:
        """One of a stream of server-sent events; the first one begins it."""
        if not self.has_begun:
            self._begin(200, _CHUNKED, "text/event-stream; charset=utf-8")
        self._write_chunk(b"data: " + data + b"\n\n")

    def end(self) -> None:
        """No event is to come. A stream that breaks off before is seen to be cut."""
        self._write_chunk(b"")

    @property
    def is_over(self) -> bool:
        """Whether the client has gone."""
        connection = self._handler.connection
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _write_chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _begin(self, status: int, headers: dict[str, str], kind: str = "application/json") -> None:
        self.has_begun = True
        self._handler.send_response(status)
        for name, value in {"Content-Type": kind, "Connection": "close", **headers}.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

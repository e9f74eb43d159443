"""What every process has around its loop: an HTTP thread, and an exit code with a reason."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.errors import ConfigError, Fenced, SluiceError
from pipeline.logs import say_why
from pipeline.metrics import Metrics

OWN_PACKAGES = ("pipeline", "services")

CLIENT_SECONDS = 60.0
"""For a client that neither sends nor takes anything."""
MOST_CLIENTS = 256
"""Connections at once: each takes a thread and a descriptor, of which the loop needs some."""

EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_FENCED = 0, 1, 2, 3

REDIS_VARIABLE = "SLUICE_REDIS"
"""How a process is told its server: every user of a machine can read an argument's password."""


def exit_code(body: Callable[[], None]) -> int:
    """Runs the body; its errors become one line and the code that says whose fault it was."""
    try:
        body()
    except ConfigError as exc:
        return _say(exc, EXIT_INPUT)
    except Fenced as exc:
        return _say(exc, EXIT_FENCED)
    except SluiceError as exc:
        return _say(exc, EXIT_FAILED)
    return EXIT_DONE


@contextmanager
def needs(extra: str, *, what: str) -> Iterator[None]:
    """A package of others that is not installed becomes a ConfigError that names its extra."""
    try:
        yield
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package in OWN_PACKAGES:
            raise
        rule = f"needs {package}, which is not installed"
        raise ConfigError(
            what, None, rule=rule, remedy=f"pip install 'sluice-rl[{extra}]'"
        ) from exc


class Http:
    """/metrics, /healthz (the loop makes progress) and /readyz (it does its work) in a thread.

    `trouble` says why it is not ready; empty where it is. What is asked beside those goes to
    `beside`, which answers it, or says that it does not.
    """

    def __init__(self, metrics: Metrics, address: str = "127.0.0.1:0") -> None:
        self.healthy: Callable[[], bool] = lambda: True
        self.trouble: Callable[[], str] = lambda: "it starts"
        self.beside: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        host, _, port = address.rpartition(":")
        handler = _handler(self, metrics)
        try:
            self._server = _Server((host or "127.0.0.1", int(port)), handler)
        except (OSError, ValueError, OverflowError) as exc:
            remedy = "name a free HOST:PORT, or port 0 for any"
            rule = f"cannot be listened on ({exc})"
            raise ConfigError("--http", address, rule=rule, remedy=remedy) from exc
        bound_host, bound_port = self._server.server_address[:2]
        self.address = f"{bound_host!s}:{bound_port}"
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that wait for their thread

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that has gone is no error
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(http: Http, metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    pages: dict[str, Callable[[], tuple[int, bytes]]] = {
        "/metrics": lambda: (200, metrics.exposition()),
        "/healthz": lambda: _verdict("" if http.healthy() else "its loop makes no progress"),
        "/readyz": lambda: _verdict(http.trouble()),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # whoever sends a long body asks first
        timeout = CLIENT_SECONDS
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if page := pages.get(self.path):
                self._reply(*page())
            elif not http.beside(self):
                self._reply(404, f"known: {' '.join(pages)}\n".encode())

        def do_POST(self) -> None:
            if not http.beside(self):
                self._reply(404, b"nothing is to be posted here\n")

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            logging.getLogger(__name__).debug(format, *args)

    return Handler


def _verdict(trouble: str) -> tuple[int, bytes]:
    return 503 if trouble else 200, f"{trouble or 'ok'}\n".encode()


def _say(exc: SluiceError, code: int) -> int:
    say_why(str(exc))
    return code

"""Endpoints as judges and services are: they answer, refuse, talk nonsense, hang, die.

What one does stands in the answer that it is asked about, as `strangers` do it: "429; 500; 7" is
refused, refused, and then worth 7. All other texts are judged: worth 10 where the answer itself
begins with "good", and else 0. As a process: PORT on its command line.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

ANSWER = re.compile(
    r"(?sm)\Amark: (\w+)\n.*^\[\1: the answer begins\]\n(.*)\n\[\1: the answer ends\]$"
)
BIG = b"x" * 65_536


class Endpoint:
    """Serves in threads of its own until it is left; asked by what, how often, how many at once."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: Counter[str] = Counter()
        self.now = self.most = self.open = 0
        self.lock, self.closed = threading.Lock(), threading.Event()
        endpoint = self

        class Asked(Connection):
            server_of = endpoint

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Asked)
        self.server.daemon_threads = True
        self.server.socket.listen(128)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()


class Connection(BaseHTTPRequestHandler):
    """One at a time of what is asked over it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: Endpoint

    def setup(self) -> None:
        super().setup()
        with self.server_of.lock:
            self.server_of.open += 1

    def finish(self) -> None:
        with self.server_of.lock:
            self.server_of.open -= 1
        with suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.is_judge = "messages" in body
        text = answer_in(body["messages"][-1]["content"]) if self.is_judge else body["text"]
        end = self.server_of
        with end.lock:
            end.bodies.append(body)
            end.headers.append({name.lower(): value for name, value in self.headers.items()})
            end.paths.append(self.path)
            number = end.times[text]
            end.times[text] += 1
            end.now += 1
            end.most = max(end.most, end.now)
        try:
            with suppress(OSError):
                self.act(text, number)
        finally:
            with end.lock:
                end.now -= 1

    def act(self, text: str, number: int) -> None:
        if not PROGRAM.match(text):
            self.verdict(10 if text.startswith("good") else 0)
            return
        steps = text.split(";")
        word, _, rest = steps[min(number, len(steps) - 1)].strip().partition(" ")
        if not word.isdecimal():
            ACTS[word](self, rest)
        elif int(word) < 100:
            self.verdict(int(word))
        else:
            after = {"Retry-After": rest} if rest else {}
            self.reply(b'{"error": {"message": "not now"}}', int(word), **after)

    def verdict(self, score: int) -> None:
        self.say(json.dumps({"score" if self.is_judge else "reward": score}))

    def say(self, content: str, finish: str = "stop") -> None:
        if not self.is_judge:
            self.reply(content.encode())
            return
        choice = {"index": 0, "finish_reason": finish, "message": {"content": content}}
        self.reply(json.dumps({"object": "chat.completion", "choices": [choice]}).encode())

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def half(self, _: str) -> None:
        self.reply(b'{"choices": [{"message": {"content": "{')

    def broken(self, _: str) -> None:
        """Dies while it speaks: more was promised."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.close_connection = True

    def reset(self, _: str) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def endless(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server_of.closed.is_set():
            self.wfile.write(BIG)

    def endless_headers(self, _: str) -> None:
        self.send_response(200)
        self.flush_headers()
        while not self.server_of.closed.is_set():
            self.wfile.write(b"X-More: " + BIG + b"\r\n")

    def slow(self, seconds: str) -> None:
        self.server_of.closed.wait(float(seconds))
        self.verdict(10)

    def never(self, _: str) -> None:
        """A part of a reply, and no more of it, until the endpoint ends."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"{")
        self.server_of.closed.wait()
        self.close_connection = True

    def refuse(self, text: str) -> None:
        self.reply(f'{{"error": {{"message": "{text}"}}}}'.encode(), 401)

    def trickle(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server_of.closed.wait(0.02):
            self.wfile.write(b" ")

    def redirect(self, status: str) -> None:
        self.reply(b"", int(status), Location=f"{self.server_of.url}/elsewhere")

    def log_message(self, format: str, *args: object) -> None:
        pass


ACTS: dict[str, Callable[[Connection, str], None]] = {
    "say": Connection.say,
    "body": lambda connection, text: connection.reply(text.encode(errors="surrogateescape")),
    "half": Connection.half,
    "broken": Connection.broken,
    "reset": Connection.reset,
    "endless": Connection.endless,
    "headers": Connection.endless_headers,
    "slow": Connection.slow,
    "never": Connection.never,
    "length": lambda connection, _: connection.say('{"score": 10}', "length"),
    "trickle": Connection.trickle,
    "redirect": Connection.redirect,
    "refuse": Connection.refuse,
}
PROGRAM = re.compile(rf"\d+\b|(?:{'|'.join(ACTS)})\b")


def answer_in(message: str) -> str:
    """What a judge that keeps to the mark reads as the answer."""
    found = ANSWER.search(message)
    assert found, message
    return found[2]


if __name__ == "__main__":
    with Endpoint(int(sys.argv[1])) as serving:
        print(serving.url, flush=True)
        while not serving.now:
            time.sleep(0.01)
        time.sleep(0.05)  # until the first bytes of the reply are out
        print("asked", flush=True)
        serving.closed.wait()

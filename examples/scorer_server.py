"""A scorer behind HTTP, in the standard library alone: port it to any language.

    python examples/scorer_server.py --port 8400

and in RUN.toml

    scorers = [{ use = "http", url = "http://127.0.0.1:8400/score" }]

Every answer comes as one POST, with a JSON object as its body:

    version     1; a service refuses one that it does not know
    text        the answer
    prompt      what it answers
    reference   what the data set has as its reference: any JSON value, null where there is none
    task        the kind of task, or ""
    finish      how the answer ended: "stop", or "length" where it was cut
    max_tokens  how long it could be, or 0 where that is not known

and is answered, with status 200, by a JSON object of

    reward      a finite number
    outcome     a finite number, the verdict before any shaping; may be left out: it is the reward
    reason      one of few words that say why; may be left out

and nothing else. What cannot be graded is answered with another status: 4xx, and the member fails
at once, or 429 or 5xx, and it is tried again, after Retry-After if that is given. It is never a
reward of 0. Several answers come at once, over connections that are kept open.
"""

from __future__ import annotations

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_BYTES = 1 << 24
PATH = "/score"


def score(asked: dict[str, Any]) -> dict[str, Any]:
    """1 where the last number of the answer is the reference; a cut answer costs a little."""
    if asked["finish"] == "length":
        return {"reward": -0.1, "outcome": 0.0, "reason": "cut"}
    numbers = re.findall(r"-?\d+(?:\.\d+)?", asked["text"])
    if not numbers:
        return {"reward": 0.0, "reason": "no_final_answer"}
    right = numbers[-1] == str(asked["reference"]).strip()
    return {"reward": float(right), "reason": "right" if right else "wrong"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"  # so that it is kept open
    wbufsize = -1  # head and body in one packet: as two, each reply takes 40 ms longer

    def do_POST(self) -> None:
        """One answer to be scored."""
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            self.close_connection = True
            self._reply(413, {"error": f"a body of at most {MOST_BYTES} bytes is needed"})
            return
        body = self.rfile.read(int(size))
        if self.path != PATH:
            self._reply(404, {"error": f"answers are scored at {PATH}"})
            return
        try:
            asked = json.loads(body)
            if asked["version"] != 1:
                raise ValueError(f"version {asked['version']!r} of the schema is not known")
            verdict = score(asked)
        except (ValueError, KeyError, TypeError) as exc:
            self._reply(400, {"error": f"{type(exc).__name__}: {exc}"})
            return
        self._reply(200, verdict)

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line for every answer would be too many."""


class Server(ThreadingHTTPServer):
    """A thread for each connection; as many may wait to be accepted as come at once."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serves until it is killed; port 0 takes a free one."""
    parser = argparse.ArgumentParser(description="A scorer behind HTTP.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8400)
    given = parser.parse_args()
    with Server((given.host, given.port), Handler) as server:
        print(f"scores at http://{given.host}:{server.server_port}{PATH}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

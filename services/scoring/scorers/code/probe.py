"""Whether the sandbox holds on this machine: a program in it tries to get out, before any other.

What it tries is in `inside/holes.py`. A sandbox that does not hold is none: there is no way to run
a program without.
"""

from __future__ import annotations

import json
import secrets
import socket
import time

from pipeline.errors import ConfigError
from pipeline.verdicts import AT
from services.scoring.scorers.code.box import Ended, watch
from services.scoring.scorers.code.inside.holes import DONE
from services.scoring.scorers.code.sandbox import BrokenSandbox, Sandbox
from services.scoring.scorers.code.walls import ENVIRONMENT, INSIDE

PROBE_SECONDS = 20.0
HELP = "see docs/deployment.md#programs-in-a-sandbox"


def check_sandbox(sandbox: Sandbox) -> None:
    """Raises ConfigError where none can be made, or where a program in it gets what it must not."""
    try:
        ended = _probe(sandbox)
    except BrokenSandbox as exc:
        rule, remedy = f"no sandbox can be made ({exc})", f"allow user namespaces: {HELP}"
        raise ConfigError(AT, "code", rule=rule, remedy=remedy) from exc
    *got, last = ended.out.decode(errors="replace").splitlines() or [""]
    if last != DONE:
        status = f"{ended.stop}, status {ended.status}"
        got += [last, f"did not come to its end ({status}): {_last_line(ended.err)}"]
    if got:
        rule = f"the sandbox does not hold: a program in it {', '.join(got)}"
        raise ConfigError(AT, "code", rule=rule, remedy=_remedy(got))


def _probe(sandbox: Sandbox) -> Ended:
    name = f"\0sluice-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(name)
        unix.listen()
        task = {
            "port": tcp.getsockname()[1],
            "name": name,
            "file": __file__,
            "folders": sandbox.python.folders,
            "environment": [*ENVIRONMENT, "PWD"],
            "memory": sandbox.limits.memory_bytes,
            "processes": sandbox.limits.processes,
        }
        text = (INSIDE / "holes.py").read_bytes()
        box = sandbox.start("run", text, stdin=json.dumps(task).encode())
        limits = sandbox.limits._replace(test_seconds=PROBE_SECONDS)
        try:
            watch([box], limits, until=time.monotonic() + PROBE_SECONDS)
        finally:
            ended = box.end()
    return ended


def _remedy(got: list[str]) -> str:
    if any("processes" in line for line in got):
        return f"run scoring as a user who is not root, or let it make control groups: {HELP}"
    return HELP


def _last_line(err: bytes) -> str:
    lines = err.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")

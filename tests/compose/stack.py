"""One project of `docker compose`, driven from outside; what is done with it is `run.py`'s.

Nothing here knows what a run is. The engine is the one that DOCKER_HOST names.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = ("compose.yaml", "compose.ci.yaml")
COMMAND_SECONDS = 900.0


class Failed(Exception):
    """What should hold of the stack does not; the message says what was found."""


class Stack:
    """The containers of one project."""

    def __init__(self, project: str, environment: dict[str, str]) -> None:
        """`environment` is what compose.yaml takes from it."""
        self.project = project
        self._environment = os.environ | environment
        self._compose = ("docker", "compose", "-p", project, *_flags("-f", FILES))

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of docker itself. Raises Failed with its last words."""
        return self.call("docker", *words, check=check)

    def compose(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of `docker compose` on the project. Raises Failed with its last words."""
        return self.call(*self._compose, *words, check=check)

    def once(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`sluice WORDS`, in a container of its own."""
        return self.compose("run", "--rm", "--no-deps", "-T", "sluice", *words, check=check)

    def ids(self, service: str = "", *, ended: bool = True) -> list[str]:
        """Its containers, of one service or of all; those that have ended too, or not."""
        which = [f"label=com.docker.compose.project={self.project}"]
        which += [f"label=com.docker.compose.service={service}"] if service else []
        everything = ("-a",) if ended else ()
        said = self.docker("ps", "-q", "--no-trunc", *everything, *_flags("--filter", which))
        return said.stdout.split()

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", container).stdout)
        return found[0]

    def states(self, service: str) -> list[dict[str, Any]]:
        """State of each of its containers: Status, ExitCode, Health and so on."""
        return [self.inspect(container)["State"] for container in self.ids(service)]

    def inside(self, container: str, script: str, *, check: bool = True) -> str:
        """What a line of shell says in a container."""
        return self.docker("exec", container, "sh", "-c", script, check=check).stdout

    def processes(self) -> list[int]:
        """Ids, on the engine's machine, of all that runs in its containers."""
        found: list[int] = []
        for container in self.ids(ended=False):
            rows = self.docker("top", container, "-eo", "pid").stdout.split()
            found += [int(word) for word in rows if word.isdigit()]
        return found

    def redis(self, *words: str) -> list[str]:
        """The lines of a reply of its Redis."""
        (container,) = self.ids("redis")
        secret = 'REDISCLI_AUTH="$(cat /run/secrets/redis_password)"'
        quoted = " ".join(f"'{word}'" for word in words)
        return self.inside(container, f"{secret} redis-cli {quoted}").splitlines()

    def prometheus(self, path: str, **query: str) -> Any:
        """The data of a reply of its Prometheus. Raises OSError while there is none."""
        port = self.compose("port", "prometheus", "9090").stdout.strip()
        url = f"http://{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Any command, in the project's environment. Raises Failed with its last words."""
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if check and done.returncode:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise Failed(f"{' '.join(words)}: exit {done.returncode}\n{last}")
        return done


def _flags(flag: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]

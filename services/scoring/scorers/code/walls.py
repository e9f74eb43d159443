"""The walls of a sandbox: its namespaces, and what it shows of this machine.

Inside there are a few folders of the system and the interpreter, read-only, a folder of 64 MiB to
write in, and neither a network, nor an environment, nor anything of the user's.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from services.scoring.scorers.code.inside import run
from services.scoring.scorers.code.limits import FILE_BYTES

INSIDE = Path(run.__file__).parent
SYSTEM = ("bin", "lib", "lib32", "lib64")
NOBODY = 65534
SHM_BYTES = 16 * 2**20
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/scratch",
    "TMPDIR": "/scratch",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # what a program prints of a set is the same each time
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "2",  # each thread's arena counts as 64 MiB of address space
}


class Python(NamedTuple):
    """An interpreter, and the folders that it needs besides the system's."""

    program: str
    folders: tuple[str, ...]
    hidden: tuple[str, ...]
    """Of those, what a program has no use for: packages that happen to be installed."""

    @classmethod
    def this(cls) -> Python:
        """The one that runs this, without its virtual environment."""
        prefixes = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        names = {"bin", "lib", sys.platlibdir}
        folders = {f"{prefix}/{name}" for prefix in prefixes.values() for name in names}
        packages = {sysconfig.get_path(name, vars={**prefixes}) for name in ("purelib", "platlib")}
        program = getattr(sys, "_base_executable", sys.executable)
        return cls(
            os.path.realpath(program),
            tuple(sorted(folder for folder in folders if os.path.isdir(folder))),
            tuple(sorted(folder for folder in packages if os.path.isdir(folder))),
        )


def walls(python: Python) -> list[str]:
    """The options of bubblewrap."""
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *(word for pair in ENVIRONMENT.items() for word in ("--setenv", *pair)),
        *_shown(python),
        *("--ro-bind", str(INSIDE), f"/sluice/{run.__package__.replace('.', '/')}"),
        # What belongs to root in /proc is open to a sandbox that root starts.
        *("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"),
        *("--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--size", str(FILE_BYTES), "--tmpfs", "/scratch", "--symlink", "scratch", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/scratch"),
    ]


def is_open_to_all(path: str) -> bool:
    """Whether any user can read it, and get there."""
    real = Path(os.path.realpath(path))
    if not real.exists():
        return False
    return all(place.stat().st_mode & 0o001 for place in (real, *real.parents))


def _shown(python: Python) -> Iterator[str]:
    """Read-only: the system's programs and libraries, and the interpreter's."""
    for name in SYSTEM:
        yield from _bound(f"/usr/{name}")
        if os.path.islink(f"/{name}"):
            yield from ("--symlink", os.readlink(f"/{name}"), f"/{name}")
        else:
            yield from _bound(f"/{name}")
    yield from _bound("/etc/ld.so.cache")
    for folder in python.folders:
        if not folder.startswith(tuple(f"/usr/{name}/" for name in SYSTEM)):
            yield from _bound(folder)
    for folder in python.hidden:
        yield from ("--tmpfs", folder, "--remount-ro", folder)


def _bound(path: str) -> Sequence[str]:
    return ("--ro-bind", path, path) if os.path.exists(path) else ()

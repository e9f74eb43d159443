"""Tries whatever a sandbox must deny, and prints what it got, one a line; nothing is harmed by it.

It runs as a program of its own, and reads what to look for: a port and a name at which somebody
listens outside, a file that is there, the variables that it may have, and its limits.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial

CLONE_NEWUSER = 0x10000000
DONE = "tried all"
PLACES = ("/", "/usr/lib", "/etc", "/dev", "/proc/self", "/sluice")
SETTING = "/proc/sys/kernel/core_pattern"


def main() -> None:
    task = json.loads(sys.stdin.read())
    tcp, vsock = ("127.0.0.1", task["port"]), getattr(socket, "AF_VSOCK", 40)
    _try("reaches the network", lambda: socket.create_connection(tcp, 1))
    _try("reaches a socket outside", lambda: socket.socket(socket.AF_UNIX).connect(task["name"]))
    _try("reaches a virtual machine's host", lambda: socket.socket(vsock))
    _try(f"reads {task['file']}", partial(os.stat, task["file"]))
    for place in (*PLACES, *task["folders"]):
        _try(f"writes to {place}", partial(_write, f"{place}/written"))
    _try("changes the kernel's settings", partial(os.open, SETTING, os.O_WRONLY))
    _try("makes namespaces", _namespace)
    for name in os.environ.keys() - set(task["environment"]):
        print(f"sees the variable {name}", flush=True)
    _try(f"has more than {task['memory']} bytes", partial(bytearray, task["memory"]))
    _try(f"starts more than {task['processes']} processes", partial(_fork, task["processes"]))
    print(DONE)


def _try(got: str, trial: Callable[[], object]) -> None:
    """Print what was got, unless the system denied it."""
    try:
        trial()
    except (OSError, MemoryError):
        return
    print(got, flush=True)


def _write(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)


def _namespace() -> None:
    """Python has a call for it from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")


def _fork(number: int) -> None:
    """So many besides this one; all of them end with it."""
    waiting, ours = os.pipe()
    for _ in range(number):
        if os.fork() == 0:
            os.close(ours)
            os.read(waiting, 1)
            os._exit(0)


if __name__ == "__main__":
    main()

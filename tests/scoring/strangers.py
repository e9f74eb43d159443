"""Scorers as strangers write them: they hang, print, raise, end the process, eat memory."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from pipeline.protocols import Answer, Verdict


def obey(answer: Answer) -> object:
    """Does what the answer's text says; `good` and all other texts are worth 1."""
    return ACTS.get(answer.text, lambda: 1.0)()


def _hang() -> None:
    while True:
        time.sleep(60)


def _loud() -> float:
    print("to standard output, " * 10_000)
    sys.stdout.buffer.write(b"\x00\xff" * 10_000)
    os.write(1, b"\x05\x00\x00\x00hello")
    return float(sys.stdin.read() == "")


def _garble() -> float:
    """A frame of its own on the worker's socket, which is no JSON."""
    os.write(int(sys.argv[1]), b"\x05\x00\x00\x00hello")
    return 1.0


def _eat_memory() -> float:
    held = []
    while True:
        held.append(bytearray(1 << 26))


def _start_a_child() -> None:
    subprocess.Popen(["sleep", "300"])
    _hang()


def _alarm() -> float:
    """A time limit by alarm works in a main thread alone."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return float(threading.current_thread() is threading.main_thread())


def _raise() -> None:
    raise ValueError("a checker's own")


ACTS: dict[str, Any] = {
    "hang": _hang,
    "garble": _garble,
    "die": lambda: os._exit(3),
    "exit": lambda: sys.exit(4),
    "abort": os.abort,
    "raise": _raise,
    "loud": _loud,
    "eat": _eat_memory,
    "child": _start_a_child,
    "alarm": _alarm,
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "recurse": lambda: ACTS["recurse"](),
    "torch": lambda: float("torch" in sys.modules),
    "server": lambda: float("SLUICE_REDIS" in os.environ),
}


class Scaled:
    """A scorer with state and options, in a worker."""

    version = "2.1"

    def __init__(self, *, factor: float = 1.0) -> None:
        if factor == 13:
            raise RuntimeError("bad luck")
        self.factor = factor

    def __call__(self, answer: Answer) -> Verdict:
        return Verdict(reward=self.factor * len(answer.text), outcome=float(bool(answer.text)))


async def patient(answer: Answer, *, seconds: float = 0.0) -> float:
    """On the loop: waits, or raises, or hangs."""
    if answer.text == "hang":
        await asyncio.sleep(3600)
    if answer.text == "raise":
        raise TimeoutError("somebody else's")
    if answer.text == "nan":
        return float("nan")
    if answer.text == "exit":
        sys.exit(3)
    await asyncio.sleep(seconds)
    return 1.0


def slow(answer: Answer, *, seconds: float = 0.05) -> float:
    """Takes its time; notes in a file that it began."""
    with open(os.environ["SLOW_NOTES"], "a") as notes:
        notes.write(answer.text + "\n")
    time.sleep(seconds)
    return 1.0

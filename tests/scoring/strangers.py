"""Scorers as strangers write them: they hang, print, raise, end the process, eat memory."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault, Passing


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


def _leave_behind() -> None:
    """A child that is nobody's any more: in a session of its own, its parent gone."""
    script = "setsid sh -c 'sleep 301 & sleep 302' & exec sleep 0"
    subprocess.run(["sh", "-c", script], check=True)


def _leave_and(act: Callable[[], object]) -> Callable[[], object]:
    def do() -> object:
        _leave_behind()
        return act()

    return do


def _alarm() -> float:
    """A time limit by alarm works in a main thread alone."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    return float(threading.current_thread() is threading.main_thread())


def _fork() -> float:
    """The child comes back as well, and first."""
    if not os.fork():
        return 0.25
    time.sleep(0.3)
    return 0.75


KEPT: list[bytearray] = []


def _twice() -> float:
    """Replies by itself, and then again."""
    frame = b'[[[0.5,0.5,"",null,"","",false,null]],1]'
    os.write(int(sys.argv[1]), len(frame).to_bytes(4, "little") + frame)
    return 0.75


def _nothing() -> float:
    """Replies by itself, with no reply at all."""
    frame = b"[[],1]"
    os.write(int(sys.argv[1]), len(frame).to_bytes(4, "little") + frame)
    return 0.75


class Mute(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raises(exc: BaseException) -> Callable[[], float]:
    def act() -> float:
        raise exc

    return act


FAULTS_OF_ITS_OWN = {
    "mute": _raises(Mute()),
    "no word": _raises(Fault("")),
    "own word": _raises(Fault("bad: luck", "again")),
    "no unicode": _raises(Fault("\ud800")),
}
"""Each is the fault of its answer and of no other, and never a reward."""


def _raise() -> None:
    raise ValueError("a checker's own")


ACTS: dict[str, Any] = {
    "hang": _hang,
    "garble": _garble,
    "die": lambda: os._exit(3),
    "exit": lambda: sys.exit(4),
    "abort": os.abort,
    "raise": _raise,
    "fork": _fork,
    "keep": lambda: float(bool(KEPT.append(bytearray(1 << 28)) or KEPT)),
    "twice": _twice,
    "nothing": _nothing,
    **FAULTS_OF_ITS_OWN,
    "loud": _loud,
    "eat": _eat_memory,
    "child": _start_a_child,
    "leave": _leave_and(_hang),
    "leave and die": _leave_and(lambda: os._exit(3)),
    "alarm": _alarm,
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "recurse": lambda: ACTS["recurse"](),
    "torch": lambda: float("torch" in sys.modules),
    "server": lambda: float("SLUICE_REDIS" in os.environ),
}


def same(answer: Answer) -> float:
    """1 where the text is what Python writes for the reference."""
    return float(str(answer.reference) == answer.text)


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


class Flaky:
    """Its fault passes as often as the text says, for each text; then the verdict is how often it
    was asked. After `after` seconds, where there are any."""

    def __init__(self, *, after: float | None = None) -> None:
        self.after = after
        self.asked = Counter[str]()

    def __call__(self, answer: Answer) -> Verdict:
        note(answer.text)
        self.asked[answer.text] += 1
        if self.asked[answer.text] <= int(answer.text.split()[0]):
            raise Passing("come back later", after=self.after)
        return Verdict(reward=float(self.asked[answer.text]), reason="back again")


class AsyncFlaky:
    """The same on a loop."""

    def __init__(self, *, after: float | None = None) -> None:
        self.flaky = Flaky(after=after)

    async def __call__(self, answer: Answer) -> Verdict:
        await asyncio.sleep(0)
        return self.flaky(answer)


def note(text: str) -> None:
    """A line with the time, in the file $SLOW_NOTES."""
    with open(os.environ["SLOW_NOTES"], "a") as notes:
        notes.write(f"{time.monotonic()} {text}\n")


class Crowd:
    """On a loop: the reward is how many answers were with it at once, at most, so far."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def __call__(self, answer: Answer) -> float:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.05)
        self.inside -= 1
        return float(self.most)


async def judging(answer: Answer) -> float:
    """On a loop: 2 s for what is slow, and else a moment."""
    await asyncio.sleep(2.0 if answer.text == "slow" else 0.001)
    return 1.0


class Waiting:
    """On a loop: the sixth answer and later ones say how many are with it, the first five wait."""

    def __init__(self) -> None:
        self.inside = self.asked = 0

    async def __call__(self, answer: Answer) -> float:
        self.inside, self.asked = self.inside + 1, self.asked + 1
        try:
            if self.asked > 5:
                return float(self.inside)
            await asyncio.sleep(600)
        finally:
            self.inside -= 1
        return 0.0


class Late:
    """Does not get made."""

    def __init__(self) -> None:
        time.sleep(600)

    def __call__(self, answer: Answer) -> float:
        return 1.0


class Unlucky:
    """On a loop, if it could be made."""

    def __init__(self) -> None:
        raise RuntimeError("bad luck")

    async def __call__(self, answer: Answer) -> float:
        return 1.0


class Batched:
    """The reward is how many answers were asked about together."""

    def __init__(self, *, batch: Annotated[int, Meta(ge=1)] = 4) -> None:
        self.batch = batch

    def __call__(self, answers: list[Answer]) -> list[float]:
        """As `obey` does what one text says, so do all here."""
        time.sleep(0.05)
        if any(answer.text == "short" for answer in answers):
            return []
        rewards = [float("nan") if a.text == "nan" else float(len(answers)) for a in answers]
        for answer in answers:
            if answer.text != "nan":
                ACTS.get(answer.text, lambda: None)()
        return rewards


async def odd(answer: Answer) -> float:
    """On a loop: raises what it is told, and answers what it is not."""
    await asyncio.sleep(0.3)
    return float(ODD.get(answer.text, lambda: 1.0)())


ODD = {**FAULTS_OF_ITS_OWN, "closed": _raises(GeneratorExit())}


async def stubborn(answer: Answer) -> float:
    """On a loop: keeps it from turning, ends its process, or will not be cancelled."""
    return float(await STUBBORN.get(answer.text, _good)())


async def _good() -> float:
    await asyncio.sleep(0.3)
    return 1.0


async def _sleep() -> float:
    time.sleep(600)
    return 1.0


async def _spin() -> float:
    while True:
        pass


async def _in_a_call() -> float:
    """One that holds the interpreter's lock: no other thread runs."""
    return float(bool(re.match(r"(a|a)+$", "a" * 40 + "b")))


async def _in_a_task() -> float:
    return await asyncio.create_task(_sleep())


async def _uncancelled() -> float:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            continue


async def _die() -> float:
    os._exit(3)


async def _die_in_a_thread() -> float:
    """Whose fault it is cannot be seen from the loop."""
    threading.Timer(0.1, os._exit, (3,)).start()
    await asyncio.sleep(60)
    return 1.0


async def _leave_and_sleep() -> float:
    _leave_behind()
    return await _sleep()


async def _eat() -> float:
    return float(len(ACTS["eat"]()))


STUBBORN: dict[str, Any] = {
    "sleep": _sleep,
    "spin": _spin,
    "call": _in_a_call,
    "task": _in_a_task,
    "uncancelled": _uncancelled,
    "die": _die,
    "die in a thread": _die_in_a_thread,
    "leave": _leave_and_sleep,
    "eat": _eat,
}


class Unhurried:
    """Async, and known to need longer than an answer has."""

    needs_seconds = 100.0

    async def __call__(self, answer: Answer) -> float:
        return 1.0


class Unasked:
    """Has options and nothing that could be asked."""

    def __init__(self, *, loud: bool = False) -> None:
        self.loud = loud


def takes_nothing() -> float:
    return 1.0

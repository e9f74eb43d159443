"""The children of `sluice up`: start, reap, bury, restart with a limit, stop in order.

When a run is over, and what is shown meanwhile, is `service.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipeline.bus.bus import Bus
from pipeline.errors import SluiceError
from pipeline.logs import in_text
from pipeline.serve import EXIT_DONE, EXIT_FAILED, EXIT_FENCED, EXIT_INPUT
from pipeline.watch import Snapshot
from pipeline.watch.finding import plural
from services.up.placement import Process
from services.up.silence import Silence
from services.up.spawn import Popen, Spawner, last_line

STOP_ORDER = ("prompting", "inference", "scoring", "training")
LEADS = "training"
TELLS_WHY = re.compile(
    r"sluice: |(?!DEBUG|INFO|WARN)[A-Za-z_][\w.]*: |[\w.]*(Error|Exception|Interrupt|Exit)$"
)
"""What we say of an end ourselves, or the last line of a traceback; a log's line has a date."""


class ChildFailed(SluiceError):
    """A child ended in a way that ends the run; `code` is what we exit with."""

    def __init__(self, reason: str, code: int = EXIT_FAILED) -> None:
        super().__init__(reason)
        self.code = code


class Child:
    """One process to be kept alive, and how often it had to be started again."""

    def __init__(self, process: Process, spawner: Spawner) -> None:
        self.process = process
        self._spawner = spawner
        self.restarts = 0
        self._silent_seconds = 0.0
        self._popen: Popen | None = None

    def start(self) -> None:
        """Starts it; called again after each end."""
        place, self._silent_seconds = self.process, 0.0
        self._popen = self._spawner.spawn(place.argv, environment=place.environment, log=place.log)

    @property
    def running(self) -> bool:
        """Whether it was started and has not been reaped."""
        return self._popen is not None and self._popen.returncode is None

    def ended(self) -> int | None:
        """Its exit code, once, when it has just ended."""
        return self._spawner.reap(self._popen) if self.running and self._popen else None

    def interrupt(self) -> None:
        """Asks it to stop."""
        if self.running and self._popen:
            self._popen.terminate()

    def end(self, patience_seconds: float) -> None:
        """Asks it to stop, and insists."""
        if self._popen is not None:
            self._spawner.end(self._popen, patience_seconds=patience_seconds)

    def hush(self, silent: Mapping[tuple[str, int], float]) -> None:
        """Kills it where it is among the silent; `ended` and `how` tell the rest."""
        if not self.running or self._popen is None:
            return
        if seconds := silent.get((self.process.instance, self._popen.pid)):
            self._silent_seconds = seconds
            self._popen.kill()

    def how(self, code: int) -> str:
        """The way it ended, once it has."""
        if code < 0 and self._silent_seconds:
            return f"was silent for {self._silent_seconds:.0f} s and was killed"
        if code == EXIT_DONE:
            return "ended early (exit 0 before the run was over)"
        return f"was killed by signal {-code}" if code < 0 else f"exited with {code}"

    def last_words(self) -> str:
        """The last line of its log where that is a cause, as a quotation; else where to look."""
        line = in_text(last_line(self.process.log))
        if TELLS_WHY.match(line):
            return f": {line.removeprefix('sluice: ')}"
        return f"; see {self.process.log}"


class Supervisor:
    """Keeps the children of one run alive; `events` tells what happened to them, in order."""

    def __init__(
        self, processes: Sequence[Process], spawner: Spawner, *, bus: Bus, restarts: int
    ) -> None:
        self.children = [Child(process, spawner) for process in processes]
        self.events: list[str] = []
        self._bus, self._limit = bus, restarts
        self._silence = Silence()

    def start(self) -> None:
        """Starts all, in their order. Whoever had a name before, in a run cut short, is dead."""
        for child in self.children:
            self._bus.bury(child.process.instance)
            child.start()

    @property
    def restarts(self) -> dict[str, int]:
        """How often each instance had to be started again, where it had to."""
        return {c.process.instance: c.restarts for c in self.children if c.restarts}

    def tend(self) -> None:
        """Reaps what has ended and starts it again; raises ChildFailed where that is no way on."""
        for child in self.children:
            code = child.ended()
            if code is not None:
                self._bus.bury(child.process.instance)
                if self._bus.state().stop:  # it may have heard of the end before we did
                    self._note_late(child, code)
                else:
                    self._mend(child, code)

    def heed(self, snapshot: Snapshot, at: float) -> None:
        """Kills who is a process still but has not beaten for long: `tend` takes it for a death."""
        silent = self._silence.observe(snapshot, at)
        for child in self.children:
            child.hush(silent)

    def leaving(self) -> list[str]:
        """Who has not left yet, once all were told that the run is over."""
        for child in self.children:
            code = child.ended()
            if code is not None:
                self._note_late(child, code)
        return [child.process.instance for child in self.children if child.running]

    def ask(self) -> None:
        """Asks all to stop, from the head of the stream to its foot."""
        for child in sorted(self.children, key=_stop_rank):
            child.interrupt()

    def kill(self) -> None:
        """Whoever still runs does no longer."""
        for child in self.children:
            child.end(0.0)

    def _note_late(self, child: Child, code: int) -> None:
        if code > 0:
            name, words = child.process.instance, child.last_words()
            self.events.append(f"{name} {child.how(code)} after the run's end{words}")

    def _mend(self, child: Child, code: int) -> None:
        name, words = child.process.instance, child.last_words()
        if code == EXIT_INPUT:
            raise ChildFailed(f"{name} refused its input{words}", EXIT_INPUT)
        how = child.how(code)
        if child.process.service == LEADS and code == EXIT_FENCED:
            # Of others it is a death like any other: they lead nothing.
            raise ChildFailed(f"{name} gave way{words}", EXIT_FENCED)
        if child.restarts >= self._limit:
            often = f" after {plural(child.restarts, 'restart')}" if child.restarts else ""
            raise ChildFailed(f"{name} {how}{often}{words}")
        child.restarts += 1
        self.events.append(
            f"{name} {how}; started again ({child.restarts} of {self._limit}){words}"
        )
        child.start()


def _stop_rank(child: Child) -> int:
    service = child.process.service
    return STOP_ORDER.index(service) if service in STOP_ORDER else len(STOP_ORDER)

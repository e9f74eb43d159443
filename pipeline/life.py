"""The life of one process of one service: its boot, its heartbeat, and its end.

The beat leaves from a thread, but only while the main loop makes progress: a process that hangs
falls silent, and its work is given to others. The answer to a beat says how the run stands.

The numbers in a beat are the process's, and go on over a new boot: whoever adds them up takes the
newest beat of each process.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from pipeline.bus.bus import Bus, Pulse
from pipeline.bus.connection import patience
from pipeline.bus.errors import Unreachable
from pipeline.errors import Gone, SluiceError
from pipeline.messages import Beat, Starved
from pipeline.metrics import Metrics
from pipeline.watch import ENDED, SILENT_SECONDS

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
TRY_SECONDS = 2.0
"""For a beat, and what else may be missed: whoever gets no answer says so before the patience of
its other acts is over."""
OUTAGE_SECONDS = 600.0
"""Without a server, at most, for whoever can do without one for a while."""


class Wait(NamedTuple):
    """What is waited for, or None, and since when (monotonic seconds)."""

    what: str | None
    since: float


class Life:
    """Started once the bus is open; `progress` is called in every turn of the main loop."""

    def __init__(
        self,
        bus: Bus,
        service: str,
        instance: str,
        *,
        metrics: Metrics,
        http: str = "",
        beat_seconds: float = BEAT_SECONDS,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        self.service, self.instance, self.http = service, instance, http
        self.boot = _new_boot(instance)
        self.process = self.boot
        self.version = self.pinned = -1
        self.pulse = Pulse(version=-1, step=0, stop="", reason="", closed=())
        self._bus, self._metrics, self._beat_seconds = bus, metrics, beat_seconds
        self._outage_seconds = outage_seconds
        now = time.monotonic()
        self._wait, self._turn_at, self._long = Wait("start", now), now, False
        self._alive_until = now + PATIENCE_SECONDS
        self._heard_at, self._unheard = now, ""
        self._lost_at: float | None = None  # since when the server has not answered
        self.also: Callable[[], None] = lambda: None  # after each beat, in its thread
        self.starved: tuple[Starved, ...] = ()  # set by the trainer
        self.unready = ""  # why its work is not to be relied on, set by a service that knows
        self.signal = ""
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of what both threads write: boot, and the four below
        self._held: tuple[str, ...] = ()
        self._closed: set[str] = set()
        self._gone = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._beat_on, name="beat", daemon=True)

    def start(self) -> None:
        """The first act of a boot is a beat; signals ask for a clean stop from here on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._beat()
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether a signal came, or the run is over."""
        return bool(self.signal or self.pulse.stop)

    @property
    def healthy(self) -> bool:
        """Whether the main loop made progress of late, or said how long it would not."""
        return time.monotonic() < self._alive_until

    @property
    def waiting_for(self) -> str | None:
        """What the next beat will say."""
        return self._wait.what

    @property
    def trouble(self) -> str:
        """Why this process cannot be relied on now; empty where it can."""
        now = time.monotonic()
        if not self.healthy:
            return f"its loop has made no turn for {now - self._turn_at:.0f} s"
        silent, why = now - self._heard_at, self._unheard
        if silent <= SILENT_SECONDS:
            return self.unready
        return f"no beat was answered for {silent:.0f} s" + (f": {why}" if why else "")

    def progress(
        self, waiting_for: str | None = None, held: Sequence[str] = (), *, moved: bool = False
    ) -> set[str]:
        """One more turn of the loop. Returns held groups that were closed.

        `moved`: some of what was waited for has come, so that the wait begins anew. Raises Gone,
        SluiceError after `outage_seconds`, and whatever ended the thread that beats.
        """
        now = self._turn_at = time.monotonic()
        self._alive_until = max(self._alive_until, now + PATIENCE_SECONDS)
        if moved or waiting_for != self._wait.what:
            self._wait = Wait(waiting_for, now)
        self._check_outage()
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._gone:
                raise Gone(f"{self.boot} was declared dead")
            self._held = tuple(held)
            closed, self._closed = self._closed, set()
            return closed

    @contextmanager
    def long(self, what: str | None, seconds: float) -> Iterator[None]:
        """A declared act that takes up to `seconds` without a turn of the loop.

        `what` is what the process waits for meanwhile; None: it is at work.
        """
        now, before = time.monotonic(), self._wait.what
        self._wait, self._long, self._alive_until = Wait(what, now), True, now + seconds
        try:
            yield
        finally:
            now = self._turn_at = time.monotonic()
            self._wait, self._long = Wait(before, now), False
            self._alive_until = now + PATIENCE_SECONDS

    def reborn(self) -> str:
        """A new boot after Gone: the old one's work is others' now.

        Waits for the server, if that is away, for as long as `progress` would, or until a signal
        asks for a stop. Raises Unreachable, or SluiceError.
        """
        with self._lock:
            self.boot = _new_boot(self.instance)
            self._held, self._closed, self._gone = (), set(), False
        with self.long("the server", self._outage_seconds):
            while True:
                try:
                    self._beat()
                    return self.boot
                except Unreachable:
                    if self.signal:
                        raise
                    self._check_outage()

    def _check_outage(self) -> None:
        since, most = self._lost_at, self._outage_seconds
        if since is not None and time.monotonic() - since > most:
            raise SluiceError(f"no server for {most:.0f} s: {self._unheard}")

    def end(self) -> None:
        """The last beat carries the last numbers; why the process ends is not for it to say."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._wait = Wait(ENDED, time.monotonic())
        try:
            self._beat()
        except SluiceError as exc:
            log.warning("the last beat failed: %s", exc)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            if not self.healthy or self._gone:
                continue
            try:
                with patience(TRY_SECONDS):
                    self._beat()
                    self.also()
                self._note("")
            except SluiceError as exc:  # the main loop meets it too, and decides
                if isinstance(exc, Unreachable) and self._lost_at is None:
                    self._lost_at = time.monotonic()
                self._note(str(exc))
            except Exception as exc:  # raised again in the main loop, by progress
                self._error = exc
                return

    def _note(self, error: str) -> None:
        """Of the last beat; an outage is one line when it begins and one when it ends."""
        if error and error != self._unheard:
            log.warning("beat failed: %s", error)
        if self._unheard and not error:
            log.info("beats are answered again")
        self._unheard = error

    def _beat(self) -> None:
        with self._lock:
            boot, held = self.boot, self._held
        try:
            pulse = self._bus.beat(self._say(boot), held)
        except Gone:
            log.warning("boot=%s was declared dead while it was silent", boot)
            with self._lock:
                self._gone |= boot == self.boot
            return
        self._heard_at, self._lost_at = time.monotonic(), None
        with self._lock:
            self.pulse = pulse
            if boot == self.boot:
                self._closed.update(pulse.closed)

    def _say(self, boot: str) -> Beat:
        now, wait = time.monotonic(), self._wait
        return Beat(
            service=self.service,
            instance=self.instance,
            boot=boot,
            pid=os.getpid(),
            process=self.process,
            http=self.http,
            waiting_for=wait.what,
            waited_seconds=now - wait.since,
            turn_seconds=0.0 if self._long else now - self._turn_at,
            version=self.version,
            totals={name: total for name, total in self._metrics.totals().items() if total},
            gauges=self._metrics.gauges(),
            curves=self._metrics.curves(),
            starved=self.starved,
            pinned=self.pinned,
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        log.info("signal=%s came from outside: stopping", self.signal)


def _new_boot(instance: str) -> str:
    return f"{instance}:{secrets.token_hex(4)}"

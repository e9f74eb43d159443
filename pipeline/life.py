"""The life of one process of one service: its boot, its heartbeat, and its end.

The beat leaves from a thread, but only while the main loop makes progress: a process that hangs
falls silent, and its work is given to others. The answer to a beat says how the run stands.

The numbers in a beat are the process's, and go on over a new boot: whoever adds them up takes the
newest beat of each instance and pid.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from pipeline.bus.bus import Bus, Pulse
from pipeline.errors import Gone, SluiceError
from pipeline.messages import Beat
from pipeline.metrics import Metrics

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 10.0


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
    ) -> None:
        self.service, self.instance, self.http = service, instance, http
        self.boot = _new_boot(instance)
        self.version = -1
        self.pulse = Pulse(version=-1, step=0, stop="", reason="", closed=())
        self._bus, self._metrics, self._beat_seconds = bus, metrics, beat_seconds
        self._waiting_for: str | None = "start"
        self._alive_until = time.monotonic() + PATIENCE_SECONDS
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

    def progress(self, waiting_for: str | None = None, held: Sequence[str] = ()) -> set[str]:
        """One more turn of the loop. Returns held groups that were closed.

        Raises Gone, and whatever ended the thread that beats.
        """
        self._alive_until = max(self._alive_until, time.monotonic() + PATIENCE_SECONDS)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._gone:
                raise Gone(f"{self.boot} was declared dead")
            self._waiting_for, self._held = waiting_for, tuple(held)
            closed, self._closed = self._closed, set()
            return closed

    @contextmanager
    def long(self, what: str | None, seconds: float) -> Iterator[None]:
        """A declared act that takes up to `seconds` without a turn of the loop.

        `what` is what the process waits for meanwhile; None: it is at work.
        """
        self._waiting_for, before = what, self._waiting_for
        self._alive_until = time.monotonic() + seconds
        try:
            yield
        finally:
            self._waiting_for = before
            self._alive_until = time.monotonic() + PATIENCE_SECONDS

    def reborn(self) -> str:
        """A new boot after Gone: the old one's work is others' now."""
        with self._lock:
            self.boot = _new_boot(self.instance)
            self._held, self._closed, self._gone = (), set(), False
        self._beat()
        return self.boot

    def end(self) -> None:
        """The last beat carries the last numbers; why the process ends is not for it to say."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._waiting_for = "ended"
        try:
            self._beat()
        except SluiceError as exc:
            log.warning("the last beat failed: %s", exc)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            if not self.healthy or self._gone:
                continue
            try:
                self._beat()
            except SluiceError as exc:  # the main loop meets it too, and decides
                log.warning("beat failed: %s", exc)
            except Exception as exc:  # raised again in the main loop, by progress
                self._error = exc
                return

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
        with self._lock:
            self.pulse = pulse
            if boot == self.boot:
                self._closed.update(pulse.closed)

    def _say(self, boot: str) -> Beat:
        return Beat(
            service=self.service,
            instance=self.instance,
            boot=boot,
            pid=os.getpid(),
            http=self.http,
            waiting_for=self._waiting_for,
            version=self.version,
            totals=self._metrics.totals(),
            gauges=self._metrics.gauges(),
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number).name
        log.info("signal=%s came from outside: stopping", self.signal)


def _new_boot(instance: str) -> str:
    return f"{instance}:{secrets.token_hex(4)}"

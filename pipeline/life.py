"""The life of one process of one service: its boot, its heartbeat, and its end.

The beat leaves from a thread, but only while the main loop makes progress: a process that hangs
falls silent, and its work is given to others. The answer to a beat says how the run stands.
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
        self, bus: Bus, service: str, instance: str, *, metrics: Metrics, http: str = ""
    ) -> None:
        self.service, self.instance, self.http = service, instance, http
        self.boot = _new_boot(instance)
        self.version = -1
        self.pulse = Pulse(version=-1, step=0, stop="", reason="", closed=())
        self._bus, self._metrics = bus, metrics
        self._held: tuple[str, ...] = ()
        self._closed: set[str] = set()
        self._waiting_for: str | None = "start"
        self._alive_until = time.monotonic() + PATIENCE_SECONDS
        self._signalled = threading.Event()
        self._gone = threading.Event()
        self._ended = threading.Event()
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
        return self._signalled.is_set() or bool(self.pulse.stop)

    @property
    def healthy(self) -> bool:
        """Whether the main loop made progress of late, or said how long it would not."""
        return time.monotonic() < self._alive_until

    def progress(self, waiting_for: str | None = None, held: Sequence[str] = ()) -> set[str]:
        """One more turn of the loop. Returns held groups that were closed; raises Gone."""
        if self._gone.is_set():
            raise Gone(f"{self.boot} was declared dead")
        self._waiting_for, self._held = waiting_for, tuple(held)
        self._alive_until = max(self._alive_until, time.monotonic() + PATIENCE_SECONDS)
        closed, self._closed = self._closed, set()
        return closed

    @contextmanager
    def long(self, what: str, seconds: float) -> Iterator[None]:
        """A declared act that takes up to `seconds` without a turn of the loop."""
        self._waiting_for, before = what, self._waiting_for
        self._alive_until = time.monotonic() + seconds
        yield
        self._waiting_for = before
        self._alive_until = time.monotonic() + PATIENCE_SECONDS

    def reborn(self) -> str:
        """A new boot after Gone: the old one's work is others' now."""
        self.boot = _new_boot(self.instance)
        self._gone.clear()
        self._held, self._closed = (), set()
        self._beat()
        return self.boot

    def end(self) -> None:
        """The last beat carries the last numbers."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._waiting_for = "ended"
        self._beat()

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            if self.healthy and not self._gone.is_set():
                try:
                    self._beat()
                except SluiceError as exc:  # the main loop meets it too, and decides
                    log.warning("beat failed: %s", exc)

    def _beat(self) -> None:
        beat = Beat(
            service=self.service,
            instance=self.instance,
            boot=self.boot,
            pid=os.getpid(),
            http=self.http,
            waiting_for=self._waiting_for,
            version=self.version,
            totals=self._metrics.totals(),
            gauges=self._metrics.gauges(),
        )
        try:
            self.pulse = self._bus.beat(beat, self._held)
            self._closed |= set(self.pulse.closed)
        except Gone:
            log.warning("boot=%s was declared dead while it was silent", self.boot)
            self._gone.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        log.info("signal=%s came from outside: stopping", signal.Signals(number).name)
        self._signalled.set()


def _new_boot(instance: str) -> str:
    return f"{instance}:{secrets.token_hex(4)}"

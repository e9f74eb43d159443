"""An engine's side of the announcements: which version to stage, and the proof of each flip.

A thread watches the bus and takes fingerprints, so that neither costs the decode loop a wait.
"""

from __future__ import annotations

import logging
import threading
import time

from pipeline.bus.versions import Versions
from pipeline.errors import Gone, WeightsError
from pipeline.messages import Manifest, Span
from pipeline.protocols import Engine

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.02


class Subscriber:
    """Offers the newest version until it is flipped to, then confirms it; one at a time."""

    def __init__(self, versions: Versions, engine: Engine) -> None:
        self._versions, self._engine = versions, engine
        self._changed = threading.Condition()
        self._offered: Manifest | None = None
        self._newest: Manifest | None = None
        self._confirming: int | None = None
        self._proven: set[int] = set()
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="weights", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def poll(self) -> Manifest | None:
        """A version to stage, once. None while a flip waits for its confirmation.

        Raises WeightsError once a flip proved wrong, and whatever the watching thread met.
        """
        with self._changed:
            if self._error:
                raise self._error
            newest, offered = self._newest, self._offered
            if newest is None or self._confirming is not None or newest == offered:
                return None
            self._offered = newest
            return newest

    def confirm(self, version: int) -> None:
        """The engine flipped: take its fingerprint, and tell the bus. Returns at once."""
        with self._changed:
            self._confirming = version
            self._changed.notify_all()

    def serves(self, version: int) -> bool:
        """Whether the version is proven on this boot, so that prompts may be taken under it."""
        return version in self._proven

    def proven(self, span: Span) -> bool:
        """Whether the span may leave: other boots' spans were proven when they were saved."""
        return span.boot != self._engine.boot or span.version in self._proven

    @property
    def offered(self) -> int:
        """The version last offered for staging, or -1."""
        return self._offered.version if self._offered else -1

    @property
    def pending(self) -> bool:
        """Whether a flip waits for its confirmation."""
        return self._confirming is not None

    def wait(self, seconds: float) -> None:
        """Sleep until something changed here, or the seconds are over."""
        with self._changed:
            self._changed.wait(seconds)

    def restart(self) -> None:
        """Under a new boot nothing is proven: confirm what is live again."""
        with self._changed:
            self._proven.clear()
            if self._engine.version >= 0:
                self._confirming = self._engine.version
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        try:
            while not self._closed:
                self._look()
                if self._confirming is not None:
                    self._prove(self._confirming)
                with self._changed:
                    if self._confirming is None and not self._closed:
                        self._changed.wait(WATCH_SECONDS)
        except Exception as exc:  # raised again in the engine's thread by poll
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _look(self) -> None:
        newest = self._versions.newest(after=self._newest.version if self._newest else -1)
        if newest is not None:
            with self._changed:
                self._newest = newest
                self._changed.notify_all()

    def _prove(self, version: int) -> None:
        boot = self._engine.boot
        fingerprint = self._engine.fingerprint()
        try:
            right = self._versions.confirm(boot, version, fingerprint)
        except Gone:  # the engine's thread hears it too, and starts over under a new boot
            time.sleep(WATCH_SECONDS)
            return
        if not right:
            self._versions.quarantine(boot, f"version {version} flipped wrong")
            raise WeightsError(
                f"version {version} is not what was announced (live fingerprint {fingerprint}); "
                "nothing sampled under it was delivered"
            )
        with self._changed:
            if boot == self._engine.boot:
                self._proven.add(version)
                self._confirming = None
            self._changed.notify_all()
        log.info("version=%d proven", version)

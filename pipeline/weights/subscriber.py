"""An engine's side of the announcements: which version to stage, and the proof of each flip.

A thread watches the bus and takes fingerprints, so that neither costs the decode loop a wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from pipeline.bus.errors import Unannounced, Unreachable
from pipeline.bus.versions import Confirmation, Versions
from pipeline.errors import ConfigError, Gone, WeightsError
from pipeline.messages import Manifest, Span
from pipeline.protocols import Engine

log = logging.getLogger(__name__)

WATCH_SECONDS, BUSY_WATCH_SECONDS = 0.02, 0.1
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
MOST_TRIES = 8
WRONG_FLIPS = 2


class Subscriber:
    """Offers the newest version until it is flipped to, then confirms it; one at a time."""

    def __init__(
        self, versions: Versions, engine: Engine, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """What could not be staged is offered again after `retry_seconds`, then after twice so."""
        self._versions, self._engine, self._retry_seconds = versions, engine, retry_seconds
        self._changed = threading.Condition()
        self._offered: Manifest | None = None
        self._newest: Manifest | None = None
        self._failures, self._retry_at = 0, float("inf")
        self._confirming: int | None = None
        self._flipped = -1  # the last flip of this boot, if any
        self._wrong, self._num_wrong = "", 0
        self.quarantine, self._told = "", ""  # why, and which boot was told so
        self._proven: dict[int, str] = {}  # with their fingerprints
        self._doubted: dict[int, str] = {}
        self._forgotten: set[int] = set()  # by the bus, in a rollback
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="weights", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def poll(self) -> Manifest | None:
        """A version to stage: once, and again after a while where that failed.

        None while a flip waits for its confirmation, and once this engine is quarantined. Raises
        whatever the watching thread met.
        """
        with self._changed:
            if self._error:
                raise self._error
            newest = self._newest
            if newest is None or self.pending or self.quarantine:
                return None
            if newest == self._offered and time.monotonic() < self._retry_at:
                return None
            if newest != self._offered:
                self._failures = 0
            self._offered, self._retry_at = newest, float("inf")
            return newest

    def failed(self, reason: str) -> None:
        """What was offered could not be staged: offer it again, later each time.

        Raises WeightsError after the last try, or ConfigError where no version could ever be. A
        newer version starts afresh.
        """
        self._failures += 1
        if self._failures >= MOST_TRIES:
            tried = f"{reason} ({MOST_TRIES} tries)"
            if self._engine.version < 0:
                remedy = "give this machine the trainer's model and its way to the weights"
                raise ConfigError("weights", None, rule=tried, remedy=remedy)
            raise WeightsError(f"{tried}; version {self._engine.version} ran")
        self._newest = None  # it may have been sent anew, and be elsewhere now
        pause = self._retry_seconds * 2 ** (self._failures - 1)
        self._retry_at = time.monotonic() + min(pause, LONGEST_RETRY_SECONDS)

    def confirm(self, version: int) -> None:
        """The engine flipped: take its fingerprint, and tell the bus. Returns at once."""
        with self._changed:
            self._confirming = self._flipped = version
            self._changed.notify_all()

    def refuse(self, version: int, reason: str) -> None:
        """The engine flipped, and whoever looked says that it is wrong: the bus is not asked."""
        with self._changed:
            self._flipped, self._wrong = version, reason

    @property
    def wrong(self) -> str:
        """Why the last flip has to be undone, until `reverted` is told; else empty."""
        return self._wrong

    def reverted(self) -> None:
        """The engine is back at the weights before the wrong flip.

        The version is offered once more; after the second wrong flip the engine is quarantined:
        nothing is offered to it any more, and the bus hears why. A version that was rolled back
        meanwhile is no fault of the engine's, and is not offered again.
        """
        with self._changed:
            if self._flipped in self._forgotten:
                self._retry_at = float("inf")
            else:
                self._count_wrong()
            self._wrong = ""
            self._confirm_live()
            self._changed.notify_all()

    def serves(self, version: int) -> bool:
        """Whether prompts may be taken under it: it is proven on this boot, and not rolled back."""
        return version in self._proven and version not in self._forgotten

    def is_forgotten(self, version: int) -> bool:
        """Whether a rollback took it away, as far as is known: it never comes again."""
        return version in self._forgotten

    def proven(self, span: Span) -> bool:
        """Whether the span may leave: other boots' spans were proven when they were saved."""
        return span.boot != self._engine.boot or span.version in self._proven

    def doubt(self, spans: Iterable[Span]) -> None:
        """The bus knows no proof of one of these: confirm those of this boot again."""
        with self._changed:
            own = {span.version for span in spans if span.boot == self._engine.boot}
            lost = own & self._proven.keys()
            self._doubted |= {version: self._proven.pop(version) for version in lost}
            self._changed.notify_all()

    @property
    def offered(self) -> int:
        """The version last offered for staging, or -1."""
        return self._offered.version if self._offered else -1

    @property
    def pending(self) -> bool:
        """Whether a flip waits for its confirmation, or to be undone."""
        return self._confirming is not None or bool(self._wrong)

    def wait(self, seconds: float) -> None:
        """Sleep until something changed here, or the seconds are over; now and then for less."""
        with self._changed:
            self._changed.wait(seconds)

    def await_proof(self, seconds: float) -> bool:
        """Wait for what is being confirmed; whether all of it is proven."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or self._wrong or not self._unproven, seconds
            )
            return not (self._wrong or self._unproven)

    def restart(self) -> None:
        """Under a new boot nothing is proven: confirm what is live again."""
        with self._changed:
            self._proven.clear()
            self._doubted.clear()
            self._wrong = ""
            self._confirm_live()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)

    @property
    def _unproven(self) -> bool:
        return self._confirming is not None or bool(self._doubted)

    def _count_wrong(self) -> None:
        self._num_wrong += 1
        if self._num_wrong >= WRONG_FLIPS:
            self.quarantine = f"{self._num_wrong} flips went wrong, the last one: {self._wrong}"
        self._retry_at = time.monotonic() + self._retry_seconds

    def _confirm_live(self) -> None:
        """Nothing that is in flight, or waits to leave, was sampled by an unproven version."""
        version, self._flipped = self._engine.version, -1
        self._confirming = None if version < 0 or version in self._proven else version

    def _watch(self) -> None:
        try:
            while not self._closed:
                with suppress(Unreachable):  # for how long, the engine's thread decides
                    self._turn()
                with self._changed:
                    if not self._unproven and not self._closed:
                        busy = self._engine.busy
                        self._changed.wait(BUSY_WATCH_SECONDS if busy else WATCH_SECONDS)
        except Exception as exc:  # raised again in the engine's thread by poll
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _turn(self) -> None:
        self._look()
        for version, fingerprint in [*self._doubted.items()]:
            self._prove(version, fingerprint)
        if (flipped := self._confirming) is not None:
            self._prove(flipped)
        if self.quarantine and self._told != self._engine.boot:
            self._tell()

    def _look(self) -> None:
        known = self._newest
        newest = self._versions.newest(after=known.version if known else -1)
        if newest is not None:
            with self._changed:
                self._newest = newest
                self._changed.notify_all()

    def _prove(self, version: int, fingerprint: str = "") -> None:
        """Of the live parameters, unless the fingerprint was taken when they were."""
        boot = self._engine.boot
        fingerprint = fingerprint or self._engine.fingerprint()
        try:
            said = self._versions.confirm(boot, version, fingerprint)
        except Gone:  # the engine's thread hears it too, and starts over under a new boot
            time.sleep(WATCH_SECONDS)
            return
        except Unannounced:  # the trainer says it again once it has looked
            time.sleep(RETRY_SECONDS)
            return
        if said == "wrong" and version in self._doubted:
            raise WeightsError(f"version {version} was proven, and is no longer what was announced")
        with self._changed:
            if boot == self._engine.boot:
                self._settle(version, fingerprint, said)
            self._changed.notify_all()

    def _settle(self, version: int, fingerprint: str, said: Confirmation) -> None:
        if said == "ok":
            log.info("version=%d proven", version)
            self._proven[version] = fingerprint
            self._forgotten.discard(version)
        elif said == "forgotten":
            self._forget(version)
        else:
            self._wrong = f"version {version} is not what was announced (live: {fingerprint})"
        self._doubted.pop(version, None)
        self._confirming = None if self._confirming == version else self._confirming

    def _forget(self, version: int) -> None:
        """A rollback took the version away: nothing is taken under it, until the next one is here.

        What it sampled after its proof may leave still; before one, it never will be able to.
        """
        log.warning("version=%d was rolled back: waiting for the next one", version)
        self._forgotten.add(version)
        if version in self._doubted:
            self._proven[version] = self._doubted[version]
        elif version == self._flipped:
            self._wrong = f"version {version} was rolled back before it was proven"

    def _tell(self) -> None:
        boot = self._engine.boot
        with suppress(Gone):  # its successor is told
            self._versions.quarantine(boot, self.quarantine)
            self._told = boot

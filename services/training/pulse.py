"""How ranks notice that one of them is gone, and which. † torch

A collective that lacks a rank fails with a broken connection, or not for as long as it may take the
slowest; neither says whose fault it is. So a thread of each rank counts up in the group's store,
whatever its main thread is busy with, and looks at the others.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same

from pipeline.errors import SluiceError
from pipeline.logs import say_why
from services.training.world import World

BEAT_SECONDS = 0.5
SURE_SECONDS = 3.0
"""Of silence, where a collective has failed already."""
GRACE_SECONDS = 5.0
"""For the main thread to end by itself."""
LEFT, FAILED = "left", "failed: "


class Blamed(SluiceError):
    """Another rank has failed, or is gone."""


class Pulse:
    """Ends this process where another rank fails, or is silent for `limit` seconds."""

    def __init__(self, world: World, *, limit: float) -> None:
        """To be made by all ranks, once they have joined."""
        self._world, self._limit = world, limit
        self._store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=limit),
        )
        self._keys = [f"sluice/pulse/{rank}" for rank in range(world.size)]
        self._seen = [("", time.monotonic())] * world.size
        self._ended = threading.Event()
        self._store.set(self._keys[world.rank], "0")
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)
        self._thread.start()

    def blame(self, exc: Exception) -> Exception:
        """The rank behind an error of the ranks' common work; the error itself where it is none."""
        deadline = time.monotonic() + 2 * SURE_SECONDS
        while time.monotonic() < deadline and not self._ended.is_set():
            if trouble := self._trouble(SURE_SECONDS):
                return Blamed(trouble)
            time.sleep(BEAT_SECONDS / 2)
        return exc

    def leave(self, error: BaseException | None = None) -> None:
        """Stop; the others hear whether all is well, or what failed here."""
        self._ended.set()
        self._thread.join()
        word = LEFT
        if error is not None:
            word = f"{FAILED}{type(error).__name__}: {' '.join(str(error).split())}"
        self._store.set(self._keys[self._world.rank], word)

    def _watch(self) -> None:
        count = 0
        while not self._ended.wait(BEAT_SECONDS):
            count += 1
            try:
                self._store.set(self._keys[self._world.rank], str(count))
                self._look(self._store.multi_get(self._keys))
            except RuntimeError as exc:  # whoever holds the store is gone, and so is the job
                self._end(f"the ranks' store is gone ({exc})")
                return
            if trouble := self._trouble(self._limit):
                self._end(trouble)
                return

    def _look(self, words: list[bytes]) -> None:
        now = time.monotonic()
        for rank, raw in enumerate(words):
            word = raw.decode()
            if word != self._seen[rank][0]:
                self._seen[rank] = (word, now)

    def _trouble(self, limit: float) -> str | None:
        """What failed, or else who has been silent for longest, if that is `limit` seconds."""
        now = time.monotonic()
        others = [
            (rank, word, now - at)
            for rank, (word, at) in enumerate(self._seen)
            if rank != self._world.rank and word != LEFT
        ]
        for rank, word, _ in others:
            if word.startswith(FAILED):
                return f"rank {rank} {word}"
        rank, _, silent = max(others, key=lambda one: one[2], default=(0, "", 0.0))
        if silent < limit:
            return None
        return f"rank {rank} is gone: it died or hangs, and has been silent for {silent:.0f} s"

    def _end(self, why: str) -> None:
        """The main thread may hang in a collective for good."""
        if not self._ended.wait(GRACE_SECONDS):
            say_why(why)
            os._exit(1)

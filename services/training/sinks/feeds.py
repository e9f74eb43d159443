"""Hands the lines of metrics.jsonl on to sinks, none of which can stop the run or slow it down.

What a sink does with a line is its own; the file is `journal.py`'s.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from pipeline import plugins
from pipeline.families import SINKS
from pipeline.protocols import Sink
from pipeline.run import Spec

log = logging.getLogger(__name__)

MOST_WAITING = 1000
CLOSE_SECONDS = 10.0

Line = Mapping[str, Any]
Failed = Callable[[str], object]
"""Hears the name of a sink for each line that it did not take."""


class Feed:
    """One sink and its thread. The first line that it does not take is told of, each is counted."""

    def __init__(self, name: str, sink: Sink, failed: Failed) -> None:
        self._name, self._sink, self._failed = name, sink, failed
        self._waiting: Queue[Line | None] = Queue(MOST_WAITING)
        self._told = False
        self._thread: Thread | None = None

    def start(self, past: Sequence[Line]) -> None:
        """Begin, with the lines that were written by former processes."""
        name = f"sink {self._name}"
        self._thread = Thread(target=self._run, args=(past,), name=name, daemon=True)
        self._thread.start()

    def write(self, line: Line | None) -> None:
        """One line more, or None: there will be no other. Returns at once."""
        try:
            self._waiting.put_nowait(line)
        except Full:
            self._fail(f"{MOST_WAITING} lines wait for it")

    def close(self, seconds: float) -> None:
        """Wait so long for what is on its way; what has not arrived then is lost to the sink."""
        self.write(None)
        if self._thread:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._fail(f"it does not end within {seconds:.0f} s")

    def _run(self, past: Sequence[Line]) -> None:
        for line in chain(past, iter(self._waiting.get, None)):
            self._try(self._sink.write, line)
        self._try(self._sink.close)

    def _try(self, act: Callable[..., None], *args: object) -> None:
        try:
            act(*args)
        except Exception as exc:  # whatever a library raises costs this line, and no other
            self._fail(f"{type(exc).__name__}: {exc}")

    def _fail(self, why: str) -> None:
        self._failed(self._name)
        if not self._told:
            self._told = True
            log.warning("sink=%s misses lines, and the run goes on without: %s", self._name, why)


class Feeds:
    """All sinks of a run."""

    def __init__(self, feeds: Sequence[Feed] = ()) -> None:
        self._feeds = feeds

    def start(self, path: Path) -> None:
        """Begin, with the lines that the file has."""
        if self._feeds:
            past = [json.loads(line) for line in path.read_bytes().splitlines()]
            for feed in self._feeds:
                feed.start(past)

    def write(self, line: Line) -> None:
        """One line more."""
        for feed in self._feeds:
            feed.write(line)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """All have what they will get, after so many seconds for each at most."""
        for feed in self._feeds:
            feed.close(seconds)


def feeds(specs: Sequence[Spec], folder: Path, *, failed: Failed) -> Feeds:
    """The sinks of `training.sinks`, not begun. Raises ConfigError for one that cannot be had."""
    made = []
    for number, spec in enumerate(specs):
        at = f"training.sinks[{number}]"
        sink: Sink = plugins.make(SINKS, spec, at=at, folder=folder)
        made.append(Feed(plugins.name_of(spec, at), sink, failed))
    return Feeds(made)

"""Signals that ask `sluice up` to stop, as something to look at between two turns."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

ASKS_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While it is entered, signals are noted and nothing else; a second one means: at once."""

    def __init__(self) -> None:
        # A plain list: an Event's lock could be held by the very code that the signal interrupts.
        self._noted: list[str] = []

    def __enter__(self) -> Interrupts:
        self._former = {number: signal.signal(number, self._note) for number in ASKS_TO_STOP}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> str:
        """The name of the first signal, or an empty string."""
        return self._noted[0] if self._noted else ""

    @property
    def urgent(self) -> bool:
        """Whether it was said twice."""
        return len(self._noted) > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(signal.Signals(number).name)

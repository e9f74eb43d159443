"""Verdicts that are known, by question: the same question is asked once, also while it is asked.

In memory, as many as are bounded. Faults are told to all who wait and are not kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from pipeline.protocols import Verdict

Ask = Callable[[], Coroutine[Any, Any, Verdict]]


class _Flight:
    """A question on its way, and how many wait for it."""

    def __init__(self, asked: Coroutine[Any, Any, Verdict]) -> None:
        self.task = asyncio.create_task(asked)
        self.waiting = 0


class Cache:
    """The latest verdicts, up to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._flights: dict[bytes, _Flight] = {}

    async def __call__(self, question: bytes, ask: Ask) -> Verdict:
        """What is known, or what `ask` finds out, by whoever asked first. Raises what that does.

        An asker that gives up takes nothing from the others; once nobody waits, the asking ends.
        """
        if question in self._verdicts:
            self._verdicts.move_to_end(question)
            return self._verdicts[question]
        flight = self._flights.get(question)
        if flight is None:
            flight = self._flights[question] = _Flight(self._asked(question, ask))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            self._land(question, flight)  # waited for in vain: whoever comes now asks anew
            raise
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                self._land(question, flight)
                flight.task.cancel()

    async def _asked(self, question: bytes, ask: Ask) -> Verdict:
        verdict = await ask()
        self._verdicts[question] = verdict
        if len(self._verdicts) > self._most:
            self._verdicts.popitem(last=False)
        return verdict

    def _land(self, question: bytes, flight: _Flight) -> None:
        """Nobody joins it any more."""
        if self._flights.get(question) is flight:
            del self._flights[question]

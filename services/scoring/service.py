"""Scoring: the one service on asyncio, since hundreds of answers may be waited for at once.

The loop and the leases are here; how an answer is graded is in `ensemble`, the workers in `pool`,
and what is known of the scorers before and beside the work in `drift`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pipeline.bus.bus import Bus
from pipeline.bus.leases import Answerable, Lease
from pipeline.errors import Gone
from pipeline.life import Life
from pipeline.messages import Score
from pipeline.verdicts import answer_of, raised
from pipeline.watch.waits import COMPLETIONS, SCORERS
from services.scoring.drift import Golden
from services.scoring.ensemble import Ensemble
from services.scoring.metrics import Numbers
from services.scoring.process import START_SECONDS

log = logging.getLogger(__name__)

MOST_SPARE = 64
"""Answers at the door of each scorer, at most."""
IDLE_SECONDS = 0.25
BUSY_SECONDS = 0.02
TOO_LARGE = Score(reward=None, error="bad_verdict: too large to be sent")
"""What the bus made of a score that it could not carry."""

Decode = Callable[[bytes], str]


class _Hand(NamedTuple):
    lease: Lease[Answerable]
    score: asyncio.Task[Score]


class Scoring:
    """Consumes completions; publishes scores, and with a group's last one the whole group.

    Waits for completions while its hands are empty (unblocked by inference), and for scorers while
    they are full (unblocked by a verdict, or by the time that an answer has). Takes nothing before
    the scorers know their golden sets. Ends when it is told to: what is scored is settled, and what
    is not goes back for another to take.
    """

    def __init__(
        self,
        bus: Bus,
        life: Life,
        ensemble: Ensemble,
        *,
        golden: Golden,
        decode: Decode,
        numbers: Numbers,
    ) -> None:
        """`golden` asks the ensemble's scorers; `decode` turns token ids, int32, into text."""
        self._bus, self._life, self._ensemble = bus, life, ensemble
        self._golden, self._decode, self._numbers = golden, decode, numbers
        life.unready = golden.trouble
        self._hands: dict[str, _Hand] = {}
        self._spare = 1

    def run(self) -> None:
        """Until told to stop. Raises ConfigError where a scorer cannot be started, or gives a
        golden answer another verdict than expected.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        with self._life.long("scorers to start", START_SECONDS):
            if not await self._start():
                return
        watch: asyncio.Task[None] | None = None
        try:
            await self._pass_gate()
            watch = asyncio.create_task(self._golden.watch())
            while not self._life.stopping:
                with self._numbers.clock("busy", COMPLETIONS, share=self._share()):
                    await self._turn()
                if watch.done():
                    watch.result()  # raises what it raised
            await self._hand_back()
        finally:
            if watch:
                watch.cancel()
            await self._ensemble.close()

    async def _start(self) -> bool:
        """Whether it was not told to stop before; then workers that are up end with this process,
        which ends now.
        """
        start = asyncio.create_task(self._ensemble.start())
        while not start.done() and not self._life.stopping:
            await asyncio.wait([start], timeout=IDLE_SECONDS)
        if start.done():
            start.result()
            return True
        start.cancel()
        await asyncio.wait([start])
        return False

    async def _pass_gate(self) -> None:
        """Returns early where it is told to stop."""
        gate = asyncio.create_task(self._golden.gate())
        while not gate.done() and not self._life.stopping:
            try:
                self._life.progress(SCORERS)
            except Gone:  # nothing is in hand yet
                self._life.reborn()
            self._life.unready = self._golden.trouble
            await asyncio.wait([gate], timeout=IDLE_SECONDS)
        if gate.done():
            gate.result()
        gate.cancel()

    async def _turn(self) -> None:
        try:
            self._progress()
            await self._settle()
            await self._draw()
        except Gone:
            self._let_go()
            self._life.reborn()

    def _share(self) -> float:
        """Of the busiest scorer that is at work."""
        return self._ensemble.load(self._waiting)

    @property
    def _waiting(self) -> int:
        return sum(not hand.score.done() for hand in self._hands.values())

    def _progress(self) -> None:
        """With every verdict the wait for the next one begins."""
        waiting = self._waiting
        self._numbers.waiting.set(waiting)
        self._life.unready = self._golden.trouble
        self._life.progress(
            SCORERS if waiting else COMPLETIONS,
            held=sorted({hand.lease.group for hand in self._hands.values()}),
            moved=waiting < len(self._hands),
        )

    async def _settle(self) -> None:
        """All that is graded, in one round trip."""
        done = [(h.lease, h.score.result()) for h in self._hands.values() if h.score.done()]
        if not done:
            return
        replies = await asyncio.to_thread(self._bus.completions.score, self._life.boot, done)
        heard = [*zip(done, replies, strict=True)]
        self._numbers.settled(
            TOO_LARGE if reply == "too_large" else score
            for (_, score), reply in heard
            if reply in ("ok", "too_large")
        )
        for (lease, _), reply in heard:
            if reply == "gone":
                raise Gone(f"{self._life.boot} was declared dead")
            del self._hands[lease.entry]

    async def _draw(self) -> None:
        """As much as there is room for; with something in hand, only a moment's wait for more."""
        room = self._ensemble.room(self._waiting, self._spare)
        if room <= 0:
            await self._wait()
            return
        leases = await asyncio.to_thread(
            self._bus.completions.draw,
            self._life.boot,
            held=[*self._hands],
            count=room,
            wait=BUSY_SECONDS if self._hands else IDLE_SECONDS,
        )
        # There is more, and a scorer idled while it was fetched: fetch more at once.
        if len(leases) == room and self._ensemble.idles(self._waiting):
            self._spare = min(2 * self._spare, MOST_SPARE)
        for lease in leases:
            self._hands[lease.entry] = _Hand(lease, asyncio.create_task(self._score(lease)))

    async def _wait(self) -> None:
        """For a verdict. Slow scorers are not hoarded for: other processes may have idle ones."""
        if not await self._ensemble.moves(IDLE_SECONDS):
            self._spare = max(self._spare // 2, 1)

    async def _score(self, lease: Lease[Answerable]) -> Score:
        """Never raises for what a scorer did: a fault is a score with an error."""
        started = time.perf_counter()
        try:
            answer = answer_of(lease.work.prompt, lease.work.completion, self._decode)
        except Exception as exc:  # one member whose text or reference cannot be read; counted below
            score = self._ensemble.fault(raised(exc))
        else:
            score = await self._ensemble(answer)
        self._numbers.seconds.inc(time.perf_counter() - started)
        if score.error:
            member = lease.work.completion.member
            log.warning("group=%s member=%d scorer_error=%s", lease.group, member, score.error)
        return score

    async def _hand_back(self) -> None:
        with suppress(Gone):  # then all of it is others' already
            await self._settle()
            leases = [hand.lease for hand in self._hands.values()]
            await asyncio.to_thread(self._bus.completions.give_back, self._life.boot, leases)
        self._let_go()

    def _let_go(self) -> None:
        for hand in self._hands.values():
            hand.score.cancel()
        self._hands.clear()

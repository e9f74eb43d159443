"""How one scorer is asked: so many answers at once, and again where a fault may pass.

Where it runs is in `pool` and in `loops`; which scorers there are, and what comes of it, in
`ensemble`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import LAST_TRY_SECONDS, Passing


class Asking:
    """At most `concurrency` answers are with the scorer at once, each tried again up to `retries`
    times; 0: as many as come.

    `slots` is how many it grades at once, and `ahead` to how many answers in hand it has given its
    verdict while others have not.

    A slot is not kept over a pause, which doubles from try to try, is spread by chance so that
    those that failed together do not come back together, and is as long as was told (Retry-After).
    """

    def __init__(
        self,
        ask: Callable[[Answer], Awaitable[Verdict]],
        *,
        concurrency: int,
        retries: int,
        on_retry: Callable[[], None],
    ) -> None:
        """`ask` is one try, with a time limit of its own."""
        self._ask, self._retries, self._on_retry = ask, retries, on_retry
        self._free: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(concurrency) if concurrency else nullcontext()
        )
        self.concurrency, self.slots, self.ahead = concurrency, concurrency or 1, 0

    async def __call__(self, answer: Answer) -> Verdict:
        """The verdict. Raises Fault; of those that pass, the one of the last try."""
        last = time.monotonic() + LAST_TRY_SECONDS
        for number in range(self._retries):
            try:
                return await self._once(answer)
            except Passing as fault:
                pause = fault.pause(number)
                if time.monotonic() + pause > last:
                    raise
            await asyncio.sleep(pause)
            self._on_retry()
        return await self._once(answer)

    def room(self, waiting: int) -> int:
        """How many more it could begin now, of so many answers in hand."""
        return self.slots - (waiting - self.ahead)

    async def _once(self, answer: Answer) -> Verdict:
        async with self._free:
            return await self._ask(answer)

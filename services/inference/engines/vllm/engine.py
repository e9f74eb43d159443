"""vLLM behind the engine protocol: one code path, on GPUs and without. † torch

Here is what becomes of members, and when weights are adopted. vLLM itself runs in `host`, versions
come in by `staged`, and a member's tokens are in `flight`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter

import torch

from pipeline.messages import Completion, Finish, Manifest, Work
from pipeline.protocols import Device, Flip, Load, StagingCost, StepTimes, Transport
from pipeline.run import MaxAge, Swap
from services.inference.engines.members import check_scored, members
from services.inference.engines.vllm import sampling
from services.inference.engines.vllm.api import TokensPrompt, current_platform
from services.inference.engines.vllm.events import Event, Failed, Told
from services.inference.engines.vllm.flight import Flight
from services.inference.engines.vllm.host import EngineDied, Events, Host
from services.inference.engines.vllm.live import Live
from services.inference.engines.vllm.pressure import Pressure
from services.inference.engines.vllm.swaps import Loader

WAIT_SECONDS = 0.05


class VllmEngine:
    """Owned by one thread, which hears of what vLLM samples when it asks for a step.

    Members that have no slot wait here and not in vLLM, so that each begins under the weights that
    serve when it does. A step is what came since the last one; it waits a moment for something.
    """

    def __init__(
        self,
        host: Host,
        loader: Loader,
        *,
        boot: str,
        end_ids: frozenset[int],
        first: str,
        pressure: Pressure,
        max_length: int,
        swap: Swap = "keep",
        slots: int = 64,
        canary_gap: float = 1.0,
    ) -> None:
        """`host` is taken over. `first` is the fingerprint of the weights that it started with."""
        self.boot = boot
        self.last_step = StepTimes(perf_counter(), 0.0, False, 0)
        self._host, self._loader, self._pressure = host, loader, pressure
        self._max_length = max_length
        self._vocabulary: int = host.llm.model_config.get_vocab_size()
        world = host.llm.vllm_config.parallel_config.world_size
        on_cpu = current_platform.is_cpu()
        threads = torch.get_num_threads()
        self.device = Device("core", world * threads) if on_cpu else Device("gpu", world)
        tells_kept = host.llm.model_config.return_sampling_mask
        self._mask_width = self._vocabulary if tells_kept else 0
        self._slots = self._group_size = slots
        self._ends = end_ids
        self._max_age, self._drains, self._draining = _max_age(swap), swap == "drain", False
        self._live = Live(host, loader, first, canary_gap=canary_gap)
        self._queue: deque[Flight] = deque()
        self._flights: dict[str, Flight] = {}
        self._done: list[Flight] = []
        self._events: Events = SimpleQueue()
        self._drawn, self._prefill = 0, False

    @property
    def version(self) -> int:
        return self._live.version

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def busy(self) -> bool:
        return bool(self._flights or self._queue or self._done)

    @property
    def load(self) -> Load:
        """What vLLM has begun with, what waits here or there, and its own share of KV."""
        waiting = min(self._pressure.waiting, len(self._flights))
        running = len(self._flights) - waiting
        share = self._pressure.kv_share if self._flights else 0.0
        return Load(running, len(self._queue) + waiting, share)

    def room(self) -> int:
        """Groups of the size seen last that would start now; fewer where vLLM is short of KV.

        0 before there is a version.
        """
        is_short = bool(self._flights) and self._pressure.is_high
        if self.version < 0 or self._draining or is_short:
            return 0
        free = self._slots - len(self._flights) - len(self._queue)
        return max(0, -(-free // self._group_size))

    def add(self, work: Work) -> None:
        """Queue the members to do. Raises Refused where the prompt can never be answered."""
        assert self.version >= 0, "nothing may be added before the first version is adopted"
        new = members(work, max_length=self._max_length, vocabulary=self._vocabulary)
        sampling.check(work.prompt.group, work.prompt.sampling, masks=self._mask_width > 0)
        self._group_size = max(1, work.prompt.members)
        self._queue.extend(Flight(member, self._max_length) for member in new)

    def drop(self, group: str) -> None:
        """Forget every sequence of a group, running or queued."""
        self._queue = deque(f for f in self._queue if f.group != group)
        self._done = [f for f in self._done if f.group != group]
        self._abort([f for f in self._flights.values() if f.group == group])

    def step(self) -> list[Completion]:
        """Begin with who has a slot now, and hear what came; who finished."""
        self._host.check()
        started, self._drawn, self._prefill = perf_counter(), 0, False
        self._admit()
        if self._flights:
            self._hear(0 if self._done else WAIT_SECONDS)
        done, self._done = [flight.completion(self.boot) for flight in self._done], []
        ended = perf_counter()
        self.last_step = StepTimes(ended, ended - started, self._prefill, self._drawn)
        return done

    def prefixes(self) -> list[Completion]:
        """Every running or queued member that has a token, as a prefix (finish None)."""
        self._hear(0)
        for flight in self._flights.values():
            flight.close_span(self.version, self.boot)
        flights = (*self._flights.values(), *self._queue)
        return [flight.completion(self.boot) for flight in flights if flight.ids]

    def park(self) -> list[Completion]:
        """The prefixes; the engine is empty afterwards."""
        parked = self.prefixes()
        for flight in self._done:
            flight.reopen()
            parked += [flight.completion(self.boot)] if flight.ids else []
        self._queue.clear()
        self._done = []
        self._abort([*self._flights.values()])
        return parked

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """Begin to receive and verify a version in the background, each worker by a transport of
        its own."""
        self._live.stage(manifest)

    def staging_error(self) -> str | None:
        """Why the last version could not be staged or loaded, once; the old one serves on."""
        return self._live.error()

    def flip(self) -> Flip | None:
        """Adopt the staged version, if it is whole; the pause is what it costs the loop.

        With `drain` only once no member is in flight; until then none begins.
        """
        self._host.check()
        self._draining = self._drains and self._live.has_other and bool(self._flights)
        if self._draining or not self._live.is_ready:
            return None
        before, started = self.version, perf_counter()
        cost = self._paused(self._live.adopt, before)
        if cost is None:
            return None
        self._resume(self._outdated(before))
        return Flip(self.version, perf_counter() - started, cost)

    def revert(self) -> int:
        """Back to the weights before the last flip; every member in flight is begun anew."""
        wrong = self.version
        self._live.check_former()
        self._paused(self._live.revert, wrong)
        for flight in self._done:
            flight.finish = None
            self._flights[flight.request] = flight
        self._done = []
        dropped = sum(flight.cut_back(wrong, self.boot) for flight in self._flights.values())
        self._resume([*self._flights.values()])
        return dropped

    def fingerprint(self) -> str:
        """The announced one, if the live weights are proven to be those; else what differs."""
        return self._live.fingerprint(self.logprobs)

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """By a request of its own, which reads no other's keys and leaves none."""
        check_scored(ids, max_length=self._max_length - 1, vocabulary=self._vocabulary)
        name = f"score#{next(self._host.numbers)}"
        return self._host.call(self._host.score(name, ids, self._loader.request))

    def pin(self) -> None:
        """None: vLLM holds one set of weights."""
        return None

    def close(self) -> None:
        """Forget all work, and end vLLM."""
        self._queue.clear()
        self._flights.clear()
        self._loader.close()
        self._host.close()

    def _admit(self) -> None:
        while self._queue and len(self._flights) < self._slots and not self._draining:
            flight = self._queue.popleft()
            self._begin(flight)

    def _begin(self, flight: Flight) -> None:
        """A request from all tokens so far; keys are shared under one set of weights alone."""
        if flight.is_spent:
            self._end(flight, "length")
            return
        prompt = flight.member.prompt
        request = f"{prompt.group}/{flight.member.number}#{next(self._host.numbers)}"
        flight.begin(request, self.version)
        self._flights[request] = flight
        params = sampling.params(
            prompt.sampling,
            tokens=flight.limit - len(flight.ids),
            ends=self._ends,
            seed=flight.seed(),
            mask_width=self._mask_width,
        )
        context = TokensPrompt(prompt_token_ids=flight.context, cache_salt=self._live.salt)
        adapter = self._loader.request
        self._host.begin(request, context, params, events=self._events, adapter=adapter)

    def _hear(self, seconds: float) -> None:
        """Everything that there is by now, after waiting for so long at most."""
        with suppress(Empty):
            self._take(self._events.get(timeout=seconds) if seconds else self._events.get_nowait())
            for _ in range(self._events.qsize()):  # vLLM may be faster than this loop
                self._take(self._events.get_nowait())

    def _take(self, event: Event) -> None:
        if (flight := self._flights.get(event.request)) is None:
            return
        if isinstance(event, Failed):
            raise self._host.died(event.error) from event.error
        if event.finish not in (None, "stop", "length"):
            raise self._host.died(RuntimeError(f"{event.request} ended by {event.finish!r}"))
        self._prefill = self._prefill or len(flight.ids) == flight.start
        flight.take(event, vocabulary=self._vocabulary)
        self._drawn += len(event.ids)
        if event.finish:
            self._finish(flight, event)

    def _finish(self, flight: Flight, told: Told) -> None:
        flight.close_span(self.version, self.boot)
        if told.versions is not None:
            flight.check(told.versions)
        del self._flights[flight.request]
        self._end(flight, "stop" if flight.ids[-1] in self._ends else "length")

    def _end(self, flight: Flight, finish: Finish) -> None:
        flight.finish = finish
        self._done.append(flight)

    def _paused(self, act: Callable[[], StagingCost | None], version: int) -> StagingCost | None:
        """Pause, hear the last of what this version sampled, and act; None where that failed.

        The pause lasts until `_resume`.
        """
        self._host.call(self._host.pause())
        self._hear(0)
        for flight in self._flights.values():
            flight.close_span(version, self.boot)
        cost = act()
        if cost is None:
            self._resume([])
        return cost

    def _resume(self, anew: Iterable[Flight]) -> None:
        """Go on, these from their tokens under keys of the weights that serve now."""
        anew = [*anew]
        self._abort(anew)
        for flight in anew:
            self._begin(flight)
        self._host.call(self._host.llm.resume_generation())

    def _outdated(self, before: int) -> list[Flight]:
        """The members in flight whose oldest keys are of weights too long gone."""
        if self._live.is_same:
            for flight in self._flights.values():
                flight.keys_of = self.version if flight.keys_of == before else flight.keys_of
        oldest = self.version - self._max_age
        return [f for f in self._flights.values() if f.keys_of < oldest]

    def _abort(self, flights: list[Flight]) -> None:
        for flight in flights:
            del self._flights[flight.request]
        if requests := [flight.request for flight in flights]:
            with suppress(EngineDied):  # they ended with it
                self._host.call(self._host.abort(requests))


def _max_age(swap: Swap) -> float:
    """How many versions old the oldest key of a member in flight may grow."""
    if isinstance(swap, MaxAge):
        return swap.max_age
    return 0 if swap == "recompute" else math.inf

"""vLLM's AsyncLLM on a thread of its own, for an owner that is synchronous. † torch

What is asked of it, and what becomes of what it says, is `engine`'s.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import aclosing, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from pipeline.errors import ConfigError, EngineLost
from services.inference.engines.vllm.api import (
    AsyncEngineArgs,
    AsyncLLM,
    CompletionOutput,
    LoRARequest,
    RequestOutput,
    SamplingParams,
    TokensPrompt,
)
from services.inference.engines.vllm.events import Event, Failed, Told
from services.inference.engines.vllm.sampling import scoring

T = TypeVar("T")
Events = SimpleQueue[Event]
Outputs = AsyncGenerator[RequestOutput, None]

LOOK_SECONDS = 0.5
QUIET_TURNS = 64


class EngineDied(EngineLost):
    """vLLM's own process is gone: nothing can go on here, and whoever supervises starts anew."""


class Host:
    """Owned by one thread; the coroutines that it is given run on vLLM's."""

    def __init__(self, args: AsyncEngineArgs, loggers: list[Callable[..., Any]]) -> None:
        """Starts vLLM, and raises what that raises."""
        self.numbers = itertools.count(1)
        """Whoever needs a name that nothing here had before takes the next."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()
        self._told = 0
        self._dead = ""
        self._closed = False
        try:
            self.llm: AsyncLLM = self._submit(self._start(args, loggers)).result()
        except BaseException:
            self._end_loop()
            raise

    def call(self, act: Coroutine[Any, Any, T]) -> T:
        """Run it on vLLM's thread; what it returns or raises. Raises EngineDied, and never hangs
        on a process that is gone."""
        future = self._submit(act)
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except NotYet:
                if future.done():
                    raise
                self.check()
            except Exception:
                self.check()
                raise

    def check(self) -> None:
        """Raises EngineDied if vLLM's process is gone."""
        if self._dead or self.llm.errored:
            why = self._dead or "its engine core ended; its own log says why"
            raise EngineDied(f"vLLM died: {why}")

    def died(self, error: Exception) -> EngineDied:
        """That this error was the end."""
        self._dead = self._dead or f"{type(error).__name__}: {error}"
        return EngineDied(f"vLLM died: {self._dead}")

    def begin(
        self,
        request: str,
        prompt: TokensPrompt,
        params: SamplingParams,
        *,
        events: Events,
        adapter: LoRARequest | None,
    ) -> None:
        """Have it sampled, on an adapter if one is named; what comes of it is put among the events,
        under the request's name."""
        outputs = self.llm.generate(prompt, params, request, lora_request=adapter)
        self.loop.call_soon_threadsafe(self._follow_soon, request, outputs, events)

    def spawn(self, act: Coroutine[Any, Any, None]) -> None:
        """Run it on vLLM's thread, and go on; it must raise nothing."""
        self._submit(act)

    async def pause(self) -> None:
        """Between two forward passes; all that was sampled by then is among the events.

        vLLM says that it stands before it has handed out all of its outputs, so they are waited
        for: its handler takes at least one step in each turn of the loop.
        """
        await self.llm.pause_generation(mode="keep", clear_cache=False)
        quiet, told = 0, self._told
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if told == self._told else 0
            told = self._told

    async def abort(self, requests: list[str]) -> None:
        """Sample no more of these. One that vLLM has not begun with yet ends with its first token;
        nothing of either is heard by the time that this returns."""
        self._unwanted.update(request for request in requests if request in self._following)
        await self.llm.abort(requests)

    async def score(
        self, request: str, ids: Sequence[int], adapter: LoRARequest | None = None
    ) -> list[float]:
        """The log-probs of ids[1:], each given those before it, as one prompt's."""
        prompt = TokensPrompt(prompt_token_ids=[*ids], cache_salt=request)
        outputs = self.llm.generate(prompt, scoring(), request, lora_request=adapter)
        async for output in outputs:
            found = output.prompt_logprobs
        return [float(value) for value in found.logprobs]

    def close(self) -> None:
        """End vLLM's processes, and the thread; what waits for them first, or it would complain.

        Once: whoever lost an engine may have closed it before its owner does.
        """
        if self._closed:
            return
        self._closed = True
        self._end_waits()
        try:
            self.llm.shutdown(timeout=2)
        finally:
            self._end_loop()
            del self.llm  # it shuts down once more when it is let go: now, and not at the exit

    async def _start(self, args: AsyncEngineArgs, loggers: list[Callable[..., Any]]) -> AsyncLLM:
        return AsyncLLM.from_engine_args(args, stat_loggers=loggers)

    def _submit(self, act: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(act, self.loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _end_waits(self) -> None:
        with suppress(NotYet):
            self._submit(_end_tasks()).result(5)

    def _end_loop(self) -> None:
        self._end_waits()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)

    def _follow_soon(self, request: str, outputs: Outputs, events: Events) -> None:
        task = self.loop.create_task(self._follow(request, outputs, events))
        self._following[request] = task
        task.add_done_callback(lambda _: self._forget(request))

    def _forget(self, request: str) -> None:
        del self._following[request]
        self._unwanted.discard(request)

    async def _follow(self, request: str, outputs: Outputs, events: Events) -> None:
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    if request in self._unwanted:
                        return
                    self._told += 1
                    events.put(_told(request, output))
        except Exception as exc:  # whatever it was, the engine's thread hears it
            self._told += 1
            events.put(Failed(request, exc))


async def _end_tasks() -> None:
    """What vLLM leaves behind on the loop, too."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _told(request: str, output: RequestOutput) -> Told:
    one: CompletionOutput = output.outputs[0]
    logprobs = tuple(one.logprobs.logprobs) if one.logprobs else ()
    kept = one.sampling_mask.token_ids if one.sampling_mask else []
    spans = one.weight_versions
    return Told(
        request,
        tuple(one.token_ids),
        logprobs,
        one.finish_reason,
        tuple(tuple(ids) for ids in kept),
        None if spans is None else tuple((s.version, s.end - s.start) for s in spans),
    )


def started(args: AsyncEngineArgs, loggers: list[Callable[..., Any]]) -> Host:
    """vLLM, running; raises ConfigError where these arguments cannot start it."""
    try:
        return Host(args, loggers)
    except Exception as exc:  # vLLM's libraries have no common error, and none is ours
        raise no_start(exc) from exc


def no_start(exc: Exception) -> ConfigError:
    """With the last line of what vLLM says of it."""
    said = next((line for line in reversed(str(exc).strip().splitlines()) if line), "")
    rule = f"vLLM does not start ({type(exc).__name__}: {said})"
    remedy = "see vLLM's own log above, and inference.engine.args"
    return ConfigError("inference.engine", "vllm", rule=rule, remedy=remedy)

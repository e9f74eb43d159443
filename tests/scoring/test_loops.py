"""Async scorers in processes of their own: whatever one does, it costs one answer and no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from strangers import ODD, STUBBORN

from pipeline.errors import ConfigError
from pipeline.protocols import Answer
from pipeline.verdicts import Fault
from services.scoring.loops import Loop

LIMIT_SECONDS = 1.0


def answer(text: str) -> Answer:
    return Answer(text=text, prompt="", reference=None, finish="stop")


async def outcome(loop: Loop, text: str, seconds: float = LIMIT_SECONDS) -> float | str:
    """The reward, or the fault's line."""
    try:
        return (await loop.grade(0, answer(text), seconds)).reward
    except Fault as fault:
        return str(fault)


def keeper() -> psutil.Process:
    """The one above the loop's process; the tests' server is a child of ours as well."""
    (found,) = (p for p in psutil.Process().children() if "keeper.py" in " ".join(p.cmdline()))
    return found


def with_loop(
    body: Callable[[Loop], Awaitable[Any]], *, use: Any = "strangers:stubborn", **more: Any
) -> Any:
    """Runs the body on a loop, closes it, and sees to it that no process is left."""

    async def run() -> Any:
        before = set(psutil.Process().children(recursive=True))
        loop = Loop(use, called="stubborn", memory_bytes=1 << 30, **more)
        await loop.start()
        try:
            return await body(loop)
        finally:
            started = time.monotonic()
            await loop.close()
            assert time.monotonic() - started < 5, "it is slow to close"
            assert set(psutil.Process().children(recursive=True)) <= before, "a process is left"

    return asyncio.run(run())


LONG = pytest.mark.long  # 3 s each; "call" is the worst of them


@pytest.mark.parametrize(
    "text",
    ["call", "die", *(pytest.param(t, marks=LONG) for t in ("leave", "spin", "task", "sleep"))],
)
def test_an_answer_that_blocks_or_ends_the_loop_has_the_fault_and_its_neighbours_have_none(
    text: str,
) -> None:
    replaced: list[int] = []

    async def body(loop: Loop) -> tuple[list[float | str], float]:
        turns, ticks = asyncio.create_task(_longest_turn()), asyncio.get_running_loop()
        started = ticks.time()
        texts = ["good", "good", text, "good", "good"]
        graded = await asyncio.gather(*(outcome(loop, text) for text in texts))
        assert ticks.time() - started < 10 * LIMIT_SECONDS
        turns.cancel()
        return graded, await turns

    graded, longest = with_loop(body, on_replaced=lambda: replaced.append(1))
    culprit = graded.pop(2)
    assert graded == [1.0] * 4
    if text == "die":
        assert culprit == "crashed"
    else:
        assert str(culprit).startswith("timeout: it kept the loop of stubborn from turning for 1.")
    assert len(replaced) == 1
    assert longest < 1.0, "whatever happens there, our own loop turns"


async def _longest_turn() -> float:
    """Seconds that the loop needed for one turn, at most."""
    longest, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    except asyncio.CancelledError:
        return longest


def test_one_that_will_not_be_cancelled_is_a_time_out_and_holds_up_nobody() -> None:
    async def body(loop: Loop) -> list[float | str]:
        return await asyncio.gather(*(outcome(loop, text) for text in ("uncancelled", "good")))

    assert with_loop(body) == ["timeout", 1.0]


def test_what_nobody_waits_for_any_more_is_cancelled_there() -> None:
    """The crowd tells how many are with it."""

    async def body(loop: Loop) -> float | str:
        asks = [asyncio.create_task(outcome(loop, "x")) for _ in range(5)]
        await asyncio.sleep(0.1)
        for ask in asks:
            ask.cancel()
        await asyncio.wait(asks)
        return await outcome(loop, "x")

    assert with_loop(body, use="strangers:Waiting") == 1.0


def test_a_process_that_is_killed_idle_costs_no_answer() -> None:
    async def body(loop: Loop) -> float | str:
        for child in [keeper(), *keeper().children()]:
            child.kill()
        return await outcome(loop, "good", seconds=5.0)

    assert with_loop(body) == 1.0


def test_the_culprit_of_a_process_that_is_ended_from_outside_is_nobody() -> None:
    """All in hand are asked again."""

    async def body(loop: Loop) -> list[float | str]:
        asks = [asyncio.create_task(outcome(loop, "good", seconds=5.0)) for _ in range(4)]
        await asyncio.sleep(0.2)
        keeper().children()[0].kill()
        return await asyncio.gather(*asks)

    assert with_loop(body) == [1.0] * 4


@LONG
def test_an_answer_is_not_at_fault_for_all_the_processes_that_others_end_beside_it() -> None:
    async def body(loop: Loop) -> list[float | str]:
        texts = ["die", "die", "good", "die", "die"]
        return await asyncio.gather(*(outcome(loop, text, seconds=9.0) for text in texts))

    assert with_loop(body) == ["crashed", "crashed", 1.0, "crashed", "crashed"]


def test_who_ends_a_process_without_a_trace_is_found_out_and_has_the_fault_alone() -> None:
    """What was lost twice is asked alone."""
    replaced: list[int] = []

    async def body(loop: Loop) -> list[float | str]:
        texts = ["good", "die in a thread", "good", "good"]
        return await asyncio.gather(*(outcome(loop, text, seconds=9.0) for text in texts))

    graded = with_loop(body, on_replaced=lambda: replaced.append(1))
    assert graded == [1.0, "crashed", 1.0, 1.0]
    assert len(replaced) == 3


@LONG
def test_memory_is_bounded_as_a_worker_s_is() -> None:
    async def body(loop: Loop) -> list[float | str]:
        return [await outcome(loop, "eat", seconds=9.0), await outcome(loop, "good")]

    first, second = with_loop(body)
    assert str(first).startswith("raised: MemoryError")
    assert second == 1.0


def test_a_scorer_that_cannot_be_built_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="RuntimeError: bad luck"):
        with_loop(lambda loop: asyncio.sleep(0), use="strangers:Unlucky")


def test_every_stubborn_text_is_tried_somewhere() -> None:
    elsewhere = {"uncancelled", "eat", "die in a thread"}
    assert {*STUBBORN} == {"sleep", "spin", "call", "task", "die", "leave"} | elsewhere


def test_whatever_is_raised_is_its_own_answers_fault_at_once() -> None:
    """Without a reply the whole loop would be taken for one that does not turn."""

    async def body(loop: Loop) -> list[float | str]:
        texts = [*ODD, "good"]
        return [*await asyncio.gather(*(outcome(loop, text, seconds=5.0) for text in texts))]

    *faults, good = with_loop(body, use="strangers:odd")
    assert good == 1.0
    assert all(str(fault).startswith("raised") for fault in faults), faults

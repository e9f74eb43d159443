"""The workers of plain scorers: a hang, a death or a flood costs one answer, and nothing else."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from strangers import FAULTS_OF_ITS_OWN

from pipeline.errors import ConfigError, SluiceError
from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Fault
from services.scoring.pool import Pool

OBEY = "strangers:obey"


def answer(text: str, reference: object = None) -> Answer:
    return Answer(text=text, prompt="", reference=reference, finish="stop")


def workers() -> set[int]:
    """The pids of the workers that are up."""
    found: set[int] = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ended meanwhile
            if "services.scoring.worker" in child.cmdline():
                found.add(child.pid)
    return found


async def outcome(pool: Pool, text: str) -> float | str:
    """The reward, or the fault's line."""
    try:
        return (await pool.grade(0, answer(text))).reward
    except Fault as fault:
        return str(fault)


def with_pool(
    body: Callable[[Pool], Awaitable[Any]], *, workers: int = 1, seconds: float = 10.0, **more: Any
) -> Any:
    """Runs the body on a pool, closes it, and sees to it that no process is left."""

    async def run() -> Any:
        before = set(psutil.Process().children(recursive=True))
        pool = Pool([OBEY], workers=workers, timeout_seconds=seconds, **more)
        await pool.start()
        try:
            return await body(pool)
        finally:
            await pool.close()
            assert set(psutil.Process().children(recursive=True)) <= before, "a process is left"

    return asyncio.run(run())


def grade_in_turn(*texts: str, **options: Any) -> list[float | str]:
    async def body(pool: Pool) -> list[float | str]:
        return [await outcome(pool, text) for text in texts]

    return with_pool(body, **options)


def test_C048_hangs_end_as_timeouts_and_all_others_are_graded() -> None:
    replaced: list[int] = []

    async def body(pool: Pool) -> list[float | str]:
        before = workers()
        texts = ["hang", "hang"] + ["good"] * 10
        graded = await asyncio.gather(*(outcome(pool, text) for text in texts))
        async with asyncio.timeout(10):
            while len(replaced) < 2 or len(workers()) < 2:
                await asyncio.sleep(0.005)
        assert not before & workers()
        return graded

    graded = with_pool(body, workers=2, seconds=0.5, on_replaced=lambda: replaced.append(1))
    assert graded == ["timeout"] * 2 + [1.0] * 10
    assert len(replaced) == 2


@pytest.mark.parametrize("text", ["die", "abort"])
def test_a_death_is_a_crash_and_the_next_answer_is_graded(text: str) -> None:
    assert grade_in_turn(text, "good") == ["crashed", 1.0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("raise", "raised: ValueError: a checker's own"),
        ("exit", "raised: SystemExit: 4"),
        ("nan", "bad_verdict: the reward is nan"),
        ("none", "bad_verdict: the reward is None, of type NoneType"),
    ],
)
def test_a_fault_costs_no_worker(text: str, fault: str) -> None:
    async def body(pool: Pool) -> tuple[list[float | str], bool]:
        before = workers()
        return [await outcome(pool, text), await outcome(pool, "good")], before == workers()

    assert with_pool(body) == ([fault, 1.0], True)


def test_an_answer_that_cannot_be_read_costs_that_answer_and_its_worker() -> None:
    assert grade_in_turn("garble", "good", seconds=5.0) == [
        "crashed: its reply cannot be read",
        1.0,
    ]


def test_a_worker_that_cannot_be_given_a_socket_is_told_by_every_answer() -> None:
    """No descriptor is left when the worker has to be replaced."""

    async def body(pool: Pool) -> list[BaseException | Verdict]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            texts = ("die", "good", "good")
            asks = [pool.grade(0, answer(text)) for text in texts]
            async with asyncio.timeout(20):
                return await asyncio.gather(*asks, return_exceptions=True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    first, *rest = with_pool(body)
    assert str(first) == "crashed"
    assert [type(error) for error in rest] == [SluiceError, SluiceError]
    assert "a scoring worker cannot be started" in str(rest[0])


def test_endless_recursion_is_a_fault() -> None:
    first, second = grade_in_turn("recurse", "good")
    assert str(first).startswith("raised: RecursionError")
    assert second == 1.0


@pytest.fixture
def typed() -> Iterator[None]:
    """Something stands on this process's standard input."""
    kept = os.dup(0)
    out, into = os.pipe()
    os.write(into, b"typed by the user")
    os.dup2(out, 0)
    os.close(out)
    os.close(into)
    yield
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.usefixtures("typed")
def test_a_scorer_may_print_and_read_what_it_likes(capfd: pytest.CaptureFixture[str]) -> None:
    assert grade_in_turn("loud", "good") == [1.0, 1.0]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "to standard output" in captured.err


def test_C046_a_scorer_that_eats_memory_is_refused_more() -> None:
    first, second = grade_in_turn("eat", "good", memory_bytes=1 << 29)
    assert str(first).startswith("raised: MemoryError")
    assert second == 1.0


def test_C044_alarms_work_since_a_scorer_runs_in_a_main_thread() -> None:
    assert grade_in_turn("alarm", "alarm") == [1.0, 1.0]


def test_a_worker_loads_no_torch() -> None:
    assert grade_in_turn("torch") == [0.0]


def test_a_worker_is_not_told_the_servers_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_REDIS", "redis://me:secret@host:1/0")
    assert grade_in_turn("server") == [0.0]


def test_what_a_scorer_started_ends_with_it() -> None:
    def sleepers() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == SLEEPER]

    before = sleepers()
    assert grade_in_turn("child", "good", seconds=1.0) == ["timeout", 1.0]
    assert sleepers() == before


SLEEPER = ["sleep", "300"]


@pytest.mark.parametrize(("text", "fault"), [("leave", "timeout"), ("leave and die", "crashed")])
def test_what_a_scorer_left_behind_in_a_session_of_its_own_ends_with_its_worker(
    text: str, fault: str
) -> None:
    async def body(pool: Pool) -> list[float | str]:
        graded = [await outcome(pool, text), await outcome(pool, "good")]
        assert not left_behind()
        return graded

    assert with_pool(body, seconds=1.0) == [fault, 1.0]


def left_behind() -> list[psutil.Process]:
    """Of those that `leave` starts."""
    lines = (["sleep", "301"], ["sleep", "302"])
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] in lines]


def test_a_worker_that_dies_idle_costs_no_answer() -> None:
    async def body(pool: Pool) -> float | str:
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(_wait_until, lambda: _ended(pid))
        await asyncio.sleep(0)  # the loop has seen the socket close
        return await outcome(pool, "good")

    assert with_pool(body) == 1.0


def test_a_worker_that_is_ended_at_the_close_is_dismissed_and_did_not_fall(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def body(pool: Pool) -> None:
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        while f"worker={pid} ended status=-9" not in caplog.messages:
            assert await outcome(pool, "good") in (1.0, "crashed")  # it may reply a last time
        assert await outcome(pool, "good") == 1.0  # the one that is dismissed is up

    with_pool(body)
    assert [words for words in caplog.messages if words.endswith(" dismissed")]
    assert sum("status=-9" in words for words in caplog.messages) == 1


def test_waiting_for_a_worker_costs_no_time_of_an_answer() -> None:
    """Four hang before it: the last one waits four times the limit and is still graded."""

    async def body(pool: Pool) -> list[float | str]:
        texts = ["hang"] * 4 + ["good"]
        return await asyncio.gather(*(outcome(pool, text) for text in texts))

    assert with_pool(body, seconds=0.2) == ["timeout"] * 4 + [1.0]


def test_a_cancelled_answer_that_waits_is_never_begun() -> None:
    async def body(pool: Pool) -> float | str:
        first = asyncio.create_task(outcome(pool, "hang"))
        second = asyncio.create_task(outcome(pool, "hang"))
        third = asyncio.create_task(outcome(pool, "good"))
        await asyncio.sleep(0.05)
        second.cancel()
        started = time.monotonic()
        assert await first == "timeout"
        assert await third == 1.0
        return time.monotonic() - started

    assert with_pool(body, seconds=1.0) < 1.95


def test_closing_does_not_wait_for_a_hang() -> None:
    async def body(pool: Pool) -> float:
        task = asyncio.create_task(outcome(pool, "hang"))
        await asyncio.sleep(0.1)
        task.cancel()
        return time.monotonic()

    started = with_pool(body, seconds=60.0)
    assert time.monotonic() - started < 5


def test_C049_long_degenerate_text_is_graded_within_the_limit() -> None:
    text = "so it must be that " * 10_000

    async def body(pool: Pool) -> Verdict:
        return await pool.grade(0, answer(text, reference=text))

    assert with_pool(body, seconds=2.0).reward == 1.0


def test_references_travel_unchanged() -> None:
    async def run() -> list[float]:
        pool = Pool(["strangers:same"], workers=1, timeout_seconds=10)
        await pool.start()
        references = [10**30, "ü\x00", [1, {"a": None}], 0.1]
        rewards = [(await pool.grade(0, answer(str(r), r))).reward for r in references]
        await pool.close()
        return rewards

    assert asyncio.run(run()) == [1.0] * 4


def _refused(spec: Any) -> str:
    before = set(psutil.Process().children())

    async def run() -> None:
        pool = Pool(["exact", spec], workers=2, timeout_seconds=10)
        try:
            await pool.start()
        finally:
            assert set(psutil.Process().children()) <= before, "a process is left"

    with pytest.raises(ConfigError) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_a_scorer_that_cannot_be_built_is_refused_at_the_start() -> None:
    spec = {"use": "strangers:Scaled", "factor": 13}
    assert "strangers:Scaled: cannot be started (RuntimeError: bad luck)" in _refused(spec)
    assert "cannot be imported" in _refused("nowhere.at_all:scorer")


def test_a_pool_that_cannot_replace_a_worker_says_so_to_every_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "vanishing.py"
    module.write_text("import os\ndef grade(answer):\n    os._exit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def run() -> list[BaseException | Verdict]:
        pool = Pool(["vanishing:grade"], workers=1, timeout_seconds=10)
        await pool.start()
        module.unlink()
        asks: list[Coroutine[Any, Any, Verdict]] = [pool.grade(0, answer("x")) for _ in range(9)]
        graded = await asyncio.gather(*asks, return_exceptions=True)
        await pool.close()
        return graded

    first, *rest = asyncio.run(run())
    assert str(first) == "crashed"
    assert len(rest) == 8
    for error in rest:
        assert isinstance(error, SluiceError)
        assert "scoring.scorers of vanishing:grade: cannot be imported" in str(error)


def test_a_scorer_that_ends_its_process_while_it_is_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(psutil.Process().children())
    (tmp_path / "leaver.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def run() -> None:
        await Pool(["leaver:grade"], workers=2, timeout_seconds=10).start()

    with pytest.raises(SluiceError, match="a scoring worker cannot be started: crashed"):
        asyncio.run(run())
    assert set(psutil.Process().children()) <= before, "a process is left"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's own")
def test_workers_die_with_the_scoring_process_even_while_they_hang() -> None:
    script = """
import asyncio, psutil
from pipeline.protocols import Answer
from services.scoring.pool import Pool
async def main():
    pool = Pool(["strangers:obey"], workers=2, timeout_seconds=600)
    await pool.start()
    hang = Answer(text="leave", prompt="", reference=None, finish="stop")
    asks = [asyncio.create_task(pool.grade(0, hang)) for _ in range(2)]
    await asyncio.sleep(0.5)
    children = psutil.Process().children(recursive=True)
    print(*(child.pid for child in children), flush=True)
    await asyncio.gather(*asks)
asyncio.run(main())
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 10, "two keepers, two workers, and three that each has left behind"
        parent.kill()
        parent.wait()
    _wait_until(lambda: all(_ended(pid) for pid in pids))


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def test_a_fork_that_comes_back_gives_no_verdict_on_another_answer() -> None:
    """The child has the worker's socket, and would reply beside it from then on."""
    assert grade_in_turn("fork", "good", "good") == [0.75, 1.0, 1.0]


def test_two_replies_to_one_answer_are_no_reply_to_the_next() -> None:
    rewards = grade_in_turn("twice", "good", "good")
    assert rewards == [0.5, "crashed: its reply is to another answer", 1.0]


def test_a_reply_without_a_verdict_is_no_end_of_the_pool() -> None:
    assert grade_in_turn("nothing", "good") == ["crashed: its reply cannot be read", 1.0]


@pytest.mark.parametrize("text", FAULTS_OF_ITS_OWN)
def test_a_fault_in_a_scorers_own_words_is_no_reward(text: str) -> None:
    first, second = grade_in_turn(text, "good")
    assert str(first).startswith("raised") and second == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="keepers are found by their command")
def test_a_keeper_that_was_stopped_holds_up_nobody() -> None:
    async def body(pool: Pool) -> list[float | str]:
        (keeper,) = (p for p in psutil.Process().children() if "keeper.py" in " ".join(p.cmdline()))
        keeper.suspend()
        started = time.monotonic()
        graded = [await outcome(pool, "hang"), await outcome(pool, "good")]
        assert time.monotonic() - started < 8
        return graded

    assert with_pool(body, seconds=0.5) == ["timeout", 1.0]


def test_a_worker_full_of_what_its_scorer_keeps_is_replaced() -> None:
    """Two times 256 MiB are more than it may have, and so is each one after that."""
    rewards = grade_in_turn("keep", "keep", "keep", memory_bytes=400 << 20)
    assert rewards[::2] == [1.0, 1.0] and str(rewards[1]).startswith("raised: MemoryError")

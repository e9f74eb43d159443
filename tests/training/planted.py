"""A trainer of its own parts in a thread, and the engine and the scorer that feed it, by hand."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.bus.bus import Bus
from pipeline.bus.leases import Lease
from pipeline.ledger import Fates, Sum
from pipeline.life import Life
from pipeline.messages import Beat, Completion, Prompt, Sampling, Score, Span, Work
from pipeline.metrics import Metrics
from pipeline.protocols import Tokens
from pipeline.run import Groups, Lag, Model, Run
from pipeline.serve import exit_code
from services.process import open_run
from services.training.build import build
from services.training.losses import cispo
from services.training.service import Training

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "model"
ENGINE, SCORER = "inference-0:p", "scoring-0:p"
TOKENS = 4

losses_told: list[float] = []
"""What `infinite_once` was asked so far."""


def infinite_once(tokens: Tokens) -> Any:
    """A user's loss that overflows in its first call."""
    losses_told.append(float("inf") if not losses_told else 1.0)
    return cispo(tokens) * losses_told[-1]


class Broken:
    """A user's sink that takes nothing."""

    def __init__(self, *, folder: Path) -> None:
        """`folder` is the run's."""

    def write(self, line: Mapping[str, Any]) -> None:
        raise OSError("the network is down")

    def close(self) -> None:
        raise OSError("nor can it end")


def made_run(
    name: str,
    *,
    steps: int = 3,
    lag: int | Lag = 1,
    pace: Any = "hold",
    dtype: Any = "float32",
    **sections: Any,
) -> Run:
    """Two groups of two members a step."""
    return Run(
        name=name,
        steps=steps,
        model=Model(path=str(MODEL), dtype=dtype),
        data="jsonl",
        groups=Groups(members=2, per_step=2),
        lag=lag if isinstance(lag, Lag) else Lag(max=lag, pace=pace),
        **sections,
    )


def wait_until(claim: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.005)


def saved(bus: Bus) -> dict[bytes, bytes]:
    """Every key of the run."""
    keys = bus._client.keys(bus._keys.prefix.replace("{", "\\{") + "*")
    return {key: bus._client.dump(key) for key in keys}


def put_back(bus: Bus, keys: dict[bytes, bytes]) -> None:
    """As a server that was restored from an older copy of its data."""
    with bus._client.pipeline(transaction=True) as together:
        together.delete(*bus._client.keys(bus._keys.prefix + "*"))
        for key, value in keys.items():
            together.restore(key, 0, value)
        together.execute()


class Stream:
    """Everybody but the trainer."""

    def __init__(self, url: str, run: Run) -> None:
        self.url, self.run = url, run
        self.bus = Bus.connect(url, run.name)
        open_run(self.bus, run)
        self.version = -1
        self._held: list[str] = []

    def serve(self, version: int) -> None:
        """The engine flips to a version as soon as it is announced."""
        wait_until(lambda: self.bus.state().version >= version, f"version {version}")
        self.beat()
        manifest = self.bus.versions.newest()
        assert manifest is not None and manifest.version == version
        assert self.bus.versions.confirm(ENGINE, version, manifest.fingerprint) == "ok"
        self.version = version

    def beat(self) -> None:
        for boot, service in ((ENGINE, "inference"), (SCORER, "scoring")):
            self.bus.beat(Beat(service=service, instance=boot.partition(":")[0], boot=boot))

    def admit(self, count: int, *, eof: bool = False) -> None:
        cursor = self.bus.state().cursor
        prompts = [self._prompt(seq) for seq in range(cursor, cursor + count)]
        admit = self.bus.prompts.admit
        assert admit(prompts, cursor=cursor, next_cursor=cursor + count, eof=eof) == "ok"

    def take(self, count: int) -> list[Lease[Work]]:
        taken = self.bus.prompts.take(ENGINE, version=self.version, held=self._held, count=count)
        assert len(taken.leases) == count, taken.status
        self._held += [lease.entry for lease in taken.leases]
        return taken.leases

    def finish(
        self,
        leases: Sequence[Lease[Work]],
        *scores: Score | float,
        change: Callable[[Completion], Completion] = lambda completion: completion,
    ) -> None:
        """Deliver the groups, each member changed, and score them, by default 0 and 1."""
        for lease in leases:
            done = [(lease, change(self._completion(lease.group, m))) for m in lease.work.todo]
            assert set(self.bus.prompts.deliver(ENGINE, done)) == {"ok"}
            self._held.remove(lease.entry)
        given = [s if isinstance(s, Score) else Score(reward=s) for s in scores or (0.0, 1.0)]
        drawn = self.bus.completions.draw(SCORER, held=(), count=99)
        assert len(drawn) == 2 * len(leases)
        graded = [(lease, given[lease.member or 0]) for lease in drawn]
        assert set(self.bus.completions.score(SCORER, graded)) == {"ok"}

    def plant(self, count: int, *scores: Score | float, eof: bool = False) -> None:
        """So many whole groups, from the data to the trainer."""
        self.admit(count, eof=eof)
        self.finish(self.take(count), *scores)

    def end_of_data(self) -> None:
        self.admit(0, eof=True)

    def ledger(self) -> Fates:
        return self.bus.snapshot().ledger

    def balance(self) -> tuple[int, int]:
        """Members and tokens without a fate."""
        ledger = self.ledger()
        generated = ledger.pop("generated", Sum(0, 0))
        fated = [sum(column) for column in zip(*ledger.values(), strict=True)] or [0, 0]
        return generated.members - fated[0], generated.tokens - fated[1]

    def _prompt(self, seq: int) -> Prompt:
        ids = struct.pack("<2i", 3, 4)
        return Prompt(group=f"g{seq}", seq=seq, ids=ids, members=2, sampling=Sampling())

    def _completion(self, group: str, member: int) -> Completion:
        return Completion(
            group=group,
            member=member,
            ids=struct.pack(f"<{TOKENS}i", *range(5 + member, 5 + member + TOKENS)),
            logprobs=struct.pack(f"<{TOKENS}f", *[-2.5] * TOKENS),
            spans=(Span(self.version, TOKENS, ENGINE),),
            engine=ENGINE,
            finish="stop",
        )


class Trainer:
    """The service as `build` makes it; its loop runs in a thread, as its exit code tells."""

    def __init__(self, url: str, run: Run, instance: str = "training-0") -> None:
        metrics = Metrics("training")
        self.bus = Bus.connect(url, run.name)
        self.life = Life(self.bus, "training", instance, metrics=metrics)
        self.life.start()
        try:
            self.service: Training = build(run, self.bus, life=self.life, metrics=metrics)
        except BaseException:
            self.life.end()
            raise
        self.totals, self.exposition = metrics.totals, metrics.exposition
        self.code: int | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = 20.0) -> int | None:
        """Its exit code; None where it raised what no process expects."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "training does not end"
        return self.code

    def stop(self) -> int | None:
        """Ask it to leave, as a signal does; its exit code."""
        self.life.signal = "SIGTERM"
        code = self.join()
        self.life.end()
        return code

    def close(self) -> None:
        if self._thread.is_alive():
            self.bus.groups.finish(self.bus.state().epoch, "done", "the test is over")
            self.join()
        self.life.end()
        self.bus.close()

    def _run(self) -> None:
        try:
            self.code = exit_code(self.service.run)
        except Exception as exc:
            self.error = exc


Lead = Callable[..., Trainer]


def feed(stream: Stream, batches: int, *scores: Score | float) -> None:
    """So many steps: two groups each, by an engine that follows every version."""
    for _ in range(batches):
        step = stream.bus.state().step
        stream.serve(stream.bus.state().version)
        stream.plant(2, *scores)
        wait_until(lambda step=step: stream.bus.state().step == step + 1, "step")
        wait_until(lambda step=step: stream.bus.versions.newest().step == step + 1, "version")

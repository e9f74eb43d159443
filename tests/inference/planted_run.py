"""A run on a real server: prompting and the trainer are played by hand, inference is real."""

from __future__ import annotations

import math
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterable

from engines_for_tests import PATIENCE_SECONDS, Paced

from pipeline.bus.bus import Bus
from pipeline.bus.keys import Keys
from pipeline.ledger import Fates, in_flight
from pipeline.life import Life
from pipeline.messages import Beat, Canary, Completion, Manifest, Prompt, Sampling, Tensor, Work
from pipeline.metrics import Metrics
from pipeline.watch import Seen
from services.inference.metrics import Numbers
from services.inference.service import Inference

SCORER = "scoring:1"
TOKENS = 12


class NoTransport:
    """The fake engine receives nothing."""

    def send(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> str:
        raise NotImplementedError

    receive = drop = send


def manifest(version: int) -> Manifest:
    ids, logprobs = array("i", (1, 2, 3)), array("f", (-1.0, -version / 8))
    return Manifest(
        version=version,
        step=version,
        epoch=1,
        fingerprint=f"f{version}",
        location="here",
        canary=Canary(ids=ids.tobytes(), logprobs=logprobs.tobytes()),
    )


class Plant:
    def __init__(self, url: str, run: str, *, lag_max: int = 5, per_step: int = 4) -> None:
        self.url, self.run, self.keys = url, run, Keys(run)
        self.bus = Bus.connect(url, run)
        self.bus.open({}, window=16, per_step=per_step, lag_max=lag_max, members=2)
        self.bus.groups.lead(1, "training:1")
        self.bus.beat(Beat(service="scoring", instance="scoring", boot=SCORER))
        self.seq = 0
        self.announce(0)

    def announce(self, version: int) -> None:
        self.bus.versions.announce(manifest(version), min_version=0)

    def admit(
        self, count: int = 1, *, ids: tuple[int, ...] = (1, 2), tokens: int = TOKENS
    ) -> list[Prompt]:
        prompts = [
            Prompt(
                group=f"g{seq}",
                seq=seq,
                ids=array("i", ids).tobytes(),
                members=2,
                sampling=Sampling(max_tokens=tokens),
            )
            for seq in range(self.seq, self.seq + count)
        ]
        self.seq += count
        reply = self.bus.prompts.admit(
            prompts, cursor=self.seq - count, next_cursor=self.seq, eof=False
        )
        assert reply == "ok"
        return prompts

    def delivered(self) -> list[Completion]:
        """What is to be scored, in the order of its delivery."""
        leases = self.bus.completions.draw(SCORER, held=[], count=1000)
        return [lease.work.completion for lease in leases]

    def await_delivered(self, count: int) -> list[Completion]:
        wait_until(lambda: len(self.delivered()) >= count)
        done = self.delivered()
        assert len(done) == count
        return done

    def ledger(self) -> Fates:
        return self.bus.snapshot().ledger

    def is_balanced(self) -> bool:
        """Once all that is alive was cancelled, every token has its fate."""
        self.bus.groups.finish(1, "done", "")
        return in_flight(self.ledger()) == 0

    def seen(self, boot: str) -> Seen:
        [seen] = [s for s in self.bus.snapshot().beats if s.beat.boot == boot]
        return seen

    def letters(self) -> list[bytes]:
        return [f[b"reason"] for _, f in self.bus._client.xrange(self.keys.dead)]


class Running:
    """An inference service in a thread, under a beat of its own."""

    def __init__(
        self,
        plant: Plant,
        instance: str = "engine",
        *,
        steps: int | None = None,
        wrong: dict[int, int] | None = None,
        evaluate_every: int = 0,
        canary_gap: float | None = None,
        off: dict[int, float] | None = None,
        bus: Bus | None = None,
    ) -> None:
        self.metrics = Metrics("inference")
        self.bus = bus or Bus.connect(plant.url, plant.run)
        self.life = Life(self.bus, "inference", instance, metrics=self.metrics)
        self.engine = Paced(boot=self.life.boot, steps=steps)
        self.engine.wrong_flips |= wrong or {}
        self.engine.off |= off or {}
        self.service = Inference(
            self.bus,
            self.engine,
            NoTransport(),
            life=self.life,
            numbers=Numbers(self.metrics),
            evaluate_every=evaluate_every,
            canary_every=0 if canary_gap is None else 1,
            canary_gap=math.inf if canary_gap is None else canary_gap,
        )
        self.error: BaseException | None = None
        self.life.start()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def total(self, name: str) -> float:
        return self.metrics.totals()[name]

    def flown(self, tokens: int) -> None:
        """Wait until so many tokens are in flight."""
        wait_until(lambda: self.tokens_in_flight() == tokens)

    def tokens_in_flight(self) -> int:
        return sum(len(row.ids) for row in (*self.engine._rows, *self.engine._queue))

    def leave(self, *, may_prove: bool = True) -> None:
        """SIGTERM, and wait for the end; a proof that is held back comes too late."""
        signal.raise_signal(signal.SIGTERM)
        if not may_prove:
            wait_until(lambda: not self.service.outbox.leases)
            self.engine.may_prove.set()
        self.join()
        if self.error:
            raise self.error

    def join(self, seconds: float = PATIENCE_SECONDS, *, ends: bool = True) -> None:
        self.thread.join(seconds)
        assert self.thread.is_alive() != ends, "inference does not end" if ends else "it ended"

    def close(self) -> None:
        self.life.signal = "SIGTERM"
        self.engine.may_prove.set()
        self.thread.join(PATIENCE_SECONDS)
        self.life.end()
        self.bus.close()

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as exc:
            self.error = exc


def alone(prompt: Prompt, version: int = 0) -> list[Completion]:
    """What an engine of this version makes of the prompt that nobody disturbs."""
    engine = Paced(boot="alone:1")
    engine.stage(manifest(version), NoTransport())
    engine.flip()
    engine.add(Work(prompt=prompt, todo=(0, 1)))
    done: list[Completion] = []
    while engine.busy:
        done += engine.step()
    return done


def ids(completions: Iterable[Completion]) -> dict[tuple[str, int], list[int]]:
    return {(c.group, c.member): array("i", c.ids).tolist() for c in completions}


def check(prompt: Prompt, done: list[Completion]) -> None:
    """Every token of every span is the one that its version samples in that place."""
    for completion in done:
        [(key, tokens)], at = ids([completion]).items(), 0
        for span in completion.spans:
            end = at + span.tokens
            assert tokens[at:end] == ids(alone(prompt, span.version))[key][at:end]
            at = end
        assert at == len(tokens)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)

"""The training service: groups in, weights and commits out."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial

from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.bus.errors import Unreachable
from pipeline.errors import Fenced, Gone, SluiceError
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.model.load import DTYPES, load_model
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import (
    ADVANTAGES,
    BACKENDS,
    LOSSES,
    TRANSPORTS,
    Advantage,
    Backend,
    Loss,
    Transport,
)
from pipeline.run import Run
from pipeline.weights.publisher import Publisher
from services.training.batch import Batch
from services.training.batch import build as build_batch
from services.training.ending import Ending, crashed, left
from services.training.epochs import check, claim
from services.training.journal import Journal, step_line
from services.training.metrics import Numbers
from services.training.optimize import Optimizer, Step, learning_rate
from services.training.pool import Pool

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.02
EXPIRE_SECONDS = 1.0
LONGEST_ACT_SECONDS = 3600.0


class Training:
    """Consumes groups; publishes weights and commits.

    Waits for groups alone: enough of them for a step, or all that can still come. They come when
    engines and scorers have done them; a commit frees their places for new prompts, and an engine
    that has flipped to the announced version may take those.
    """

    def __init__(
        self,
        run: Run,
        bus: Bus,
        backend: Backend,
        *,
        pool: Pool,
        optimizer: Optimizer,
        publisher: Publisher,
        journal: Journal,
        life: Life,
        numbers: Numbers,
    ) -> None:
        self.settings, self.bus, self.backend = run, bus, backend
        self.optimizer, self.publisher, self.journal = optimizer, publisher, journal
        self.life, self.numbers, self.clock = life, numbers, numbers.clock
        self.pool, self.epoch = pool, publisher.epoch
        self.committed = self.version = self.optimizer_step = 0
        self.expire_at = 0.0

    def run(self) -> None:
        """The run ends with its trainer, whatever ends that: it cannot be resumed yet."""
        try:
            self.train()
        except (Fenced, Unreachable):
            raise
        except Exception as exc:
            with suppress(SluiceError):  # what is raised anyway says more
                self.finish(crashed(self.optimizer_step, exc))
            raise

    def train(self) -> None:
        """The one finite clock of a run; it ends early where the data does, or a signal comes."""
        self.announce()
        while self.committed < self.settings.steps:
            batch = self.collect()
            if batch is None:
                break
            step = self.step(batch)
            self.commit(step)
            if step.result.finite:
                self.announce()
            self.write_down(step)
        self.leave()

    def collect(self) -> Batch | None:
        """Whole groups, oldest first, judged now; None where nothing can come any more."""
        per_step, tokens = self.settings.groups.per_step, self.settings.training.pack_tokens
        while not self.life.stopping:
            with self.clock("other"):
                self.keep_alive()
                self.publisher.check()
                self.pool.look(self.committed)
                oldest = self.pool.oldest(per_step)
                if len(oldest) == per_step or self.pool.exhausted:
                    rules = self.pool.rules
                    return build_batch(oldest, rules, pack_tokens=tokens) if oldest else None
            with self.clock("idle"):
                time.sleep(IDLE_SECONDS)
        return None

    def step(self, batch: Batch) -> Step:
        """One optimizer step, taken or not."""
        with self.clock("busy"), self.life.long(None, LONGEST_ACT_SECONDS):
            return self.optimizer.step(batch, number=self.committed + 1)

    def commit(self, step: Step) -> None:
        """Effect in the ledger: the groups are closed, their places are free, the step counts."""
        number, changed, fates = self.committed + 1, step.result.finite, step.batch.fates
        with self.clock("other"):
            reply = self.bus.groups.commit(self.epoch, batch=number, changed=changed, fates=fates)
            if reply == "behind":  # "old" is the answer to a repeat whose first reply was lost
                raise SluiceError(f"the server has lost what was committed before batch {number}")
            self.committed = number
            self.pool.forget(fates)
            if changed:
                self.version += 1
                self.optimizer_step += 1
                self.pool.made(self.version, self.optimizer_step)

    def announce(self) -> None:
        """Copy the weights out; they are sent, and then announced, while training goes on."""
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            self.life.version = self.version
            self.publisher.publish(self.version, self.optimizer_step, self.backend.weights())
            self.journal.keep(self.version, self.optimizer_step)

    def write_down(self, step: Step) -> None:
        """The step as a line of metrics.jsonl, as a log line, and in Prometheus."""
        with self.clock("other"):
            line = step_line(step, self.pool.tally()) | self.clock.lap()
            line |= {"batch": self.committed, "step": self.optimizer_step, "version": self.version}
            self.journal.write(line)
            self.numbers.observe(line)
            log.info(
                "step=%d reward=%.3f lag_mean=%.2f tokens=%d grad_norm=%.3f",
                *(line[key] for key in ("step", "reward", "lag_mean", "tokens", "grad_norm")),
            )

    # What the loop is made of.

    def keep_alive(self) -> None:
        """Say that training waits for groups, and end those whose deadline has passed.

        A trainer holds no leases, and its epoch is its right to act: a boot that was declared dead
        while the machine slept is replaced, and nothing else changes.
        """
        try:
            self.life.progress("groups")
            if time.monotonic() >= self.expire_at:
                self.expire_at = time.monotonic() + EXPIRE_SECONDS
                self.bus.groups.expire(self.life.boot)
        except Gone:
            self.life.reborn()

    def leave(self) -> None:
        """The last weights go out and are kept, and the run is over."""
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            self.publisher.flush()
            self.journal.keep(self.version, self.optimizer_step, last=True)
            complete = self.committed == self.settings.steps
            self.finish(
                left(
                    self.optimizer_step,
                    complete=complete,
                    drained=self.pool.drained,
                    signal=self.life.signal,
                )
            )
        self.journal.close()

    def finish(self, ending: Ending) -> None:
        """Everybody hears that the run is over; where another ended it first, that word stands."""
        self.bus.groups.finish(self.epoch, *ending)


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics) -> Training:
    """The composition root.

    Raises ConfigError for parts that cannot be had, Fenced where the run has, or had, a trainer.
    """
    check(bus, run.folder)
    with life.long("model", 600):
        # The optimizer's own copy: in bfloat16 a small learning rate would be rounded away.
        model = load_model(run.model.path, dtype="float32")
        tokenizer = Tokenizer(run.model.path)
        backend: Backend = plugins.make(
            BACKENDS, run.training.backend, model, at="training.backend"
        )
    loss: Loss = plugins.build(LOSSES, run.objective.loss, at="objective.loss")
    advantage: Advantage = plugins.build(
        ADVANTAGES, run.objective.advantage, at="objective.advantage"
    )
    transport: Transport = plugins.make(TRANSPORTS, run.weights, at="weights", run=run.name)

    def save(path: str) -> None:
        backend.save(path)
        tokenizer.save(path)

    rate = partial(
        learning_rate, peak=run.training.learning_rate, warmup_steps=run.training.warmup_steps
    )
    epoch = claim(bus, run.folder, life.boot)
    announce = partial(bus.versions.announce, min_version=0)
    return Training(
        run,
        bus,
        backend,
        pool=Pool(bus.groups, epoch, lag=run.lag, advantage=advantage),
        optimizer=Optimizer(backend, loss, rate=rate),
        publisher=Publisher(announce, transport, epoch=epoch, dtype=DTYPES[run.model.dtype]),
        journal=Journal(run.folder, save, keep_every=run.evaluation.every if run.evaluation else 0),
        life=life,
        numbers=Numbers(metrics),
    )

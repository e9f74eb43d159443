"""The training service: groups in, weights and commits out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.errors import Gone
from pipeline.ledger import Fates
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.model.load import load_model
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import (
    ADVANTAGES,
    BACKENDS,
    LOSSES,
    TRANSPORTS,
    Advantage,
    Backend,
    Loss,
    StepResult,
    Transport,
)
from pipeline.run import Run
from pipeline.weights.publisher import Publisher
from services.training.batch import Batch
from services.training.batch import build as build_batch
from services.training.considered import TRAINED
from services.training.epochs import claim
from services.training.journal import Journal, step_line
from services.training.metrics import TrainingMetrics
from services.training.objective import Objective
from services.training.pool import Pool
from services.training.statistics import Statistics

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.01
EXPIRE_SECONDS = 1.0
LONGEST_STEP_SECONDS = 3600.0


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
        objective: Objective,
        publisher: Publisher,
        journal: Journal,
        life: Life,
        metrics: TrainingMetrics,
    ) -> None:
        self.settings, self.bus, self.backend = run, bus, backend
        self.objective, self.publisher, self.journal = objective, publisher, journal
        self.life, self.metrics, self.clock = life, metrics, metrics.clock
        self.pool, self.epoch = pool, publisher.epoch
        self.version = self.optimizer_step = 0
        self.expire_at = 0.0

    def run(self) -> None:
        """The one finite clock of a run; it ends early where the data does, or a signal comes."""
        self.announce()
        for number in range(1, self.settings.steps + 1):
            batch = self.collect()
            if batch is None:
                break
            result, statistics = self.step(batch, self.rate(number))
            self.commit(number, batch, result)
            if result.finite:
                self.announce()
            self.write_down(number, batch, result, statistics)
        self.leave()

    def collect(self) -> Batch | None:
        """Whole groups, oldest first, judged now; None where nothing can come any more."""
        while not self.life.stopping:
            self.clock.turn()
            with self.clock("other"):
                self.keep_alive()
                self.pool.look()
                oldest = self.pool.oldest(self.settings.groups.per_step)
                if oldest and (self.pool.exhausted or len(oldest) == self.settings.groups.per_step):
                    pack_tokens = self.settings.training.pack_tokens
                    return build_batch(oldest, self.pool.rules, pack_tokens=pack_tokens)
                if self.pool.exhausted:
                    return None
            with self.clock("idle"):
                time.sleep(IDLE_SECONDS)
        return None

    def step(self, batch: Batch, learning_rate: float) -> tuple[StepResult, Statistics]:
        """One optimizer step over all packs; the log-probs that its statistics are made of."""
        statistics = Statistics(self.objective.loss)
        with self.clock("busy"), self.life.long("step", LONGEST_STEP_SECONDS):
            for pack in batch.packs:
                self.backend.backward(pack, partial(self.objective, pack))
                statistics.add(pack, self.backend.last)
            return self.backend.step(learning_rate), statistics

    def commit(self, number: int, batch: Batch, result: StepResult) -> None:
        """Effect in the ledger: the groups are closed, their places are free, the step counts."""
        with self.clock("other"):
            fates = batch.fates if result.finite else skipped(batch.fates)
            self.bus.groups.commit(self.epoch, batch=number, changed=result.finite, fates=fates)
            self.pool.forget(fates)
            if result.finite:
                self.version += 1
                self.optimizer_step += 1
                self.pool.made(self.version, self.optimizer_step)

    def announce(self) -> None:
        """Copy the weights out; they are sent, and then announced, while training goes on."""
        with self.clock("other"):
            self.life.version = self.version
            self.publisher.publish(self.version, self.optimizer_step, self.backend.weights())
            self.journal.keep(self.version, self.optimizer_step)

    def write_down(
        self, number: int, batch: Batch, result: StepResult, statistics: Statistics
    ) -> None:
        """The step as a line of metrics.jsonl, as a log line, and in Prometheus."""
        with self.clock("other"):
            tally = self.pool.tally()
            line = step_line(batch, tally, statistics)
            line |= {"batch": number, "step": self.optimizer_step, "version": self.version}
            line |= {"learning_rate": self.rate(number), "grad_norm": result.grad_norm}
            line |= {"finite": result.finite, **self.clock.lap()}
            self.journal.write(line)
            self.metrics.observe(line)
            log.info(
                "step=%d reward=%.3f lag_mean=%.2f tokens=%d grad_norm=%.3f",
                *(line[key] for key in ("step", "reward", "lag_mean", "tokens", "grad_norm")),
            )

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

    def rate(self, number: int) -> float:
        """The learning rate of a step, counted from 1: a linear warm-up, then level."""
        warmup = self.settings.training.warmup_steps
        return self.settings.training.learning_rate * min(1.0, number / (warmup + 1))

    def leave(self) -> None:
        """The run is over, unless a signal stopped this process alone."""
        with self.clock("other"):
            self.publisher.flush()
            self.journal.keep(self.version, self.optimizer_step, last=True)
            if not self.life.stopping:
                self.bus.groups.finish(self.epoch, "done", self.ending())
        self.clock.turn()
        self.journal.close()

    def ending(self) -> str:
        """Why the run is done."""
        if self.pool.exhausted:
            return f"the data ended after {self.optimizer_step} steps"
        return f"{self.settings.steps} steps"


def skipped(fates: Mapping[str, Fates]) -> dict[str, Fates]:
    """The fates of a step that was not taken: what would have been trained was skipped."""
    return {
        group: {"skipped" if fate == TRAINED else fate: sums for fate, sums in of_group.items()}
        for group, of_group in fates.items()
    }


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics) -> Training:
    """The composition root. Raises ConfigError for parts that cannot be had, Fenced if replaced."""
    folder = Path("runs") / run.name
    with life.long("model", 600):
        model = load_model(run.model.path, dtype=run.model.dtype)
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

    epoch = claim(bus, folder, life.boot)
    announce = partial(bus.versions.announce, min_version=0)
    return Training(
        run,
        bus,
        backend,
        pool=Pool(bus.groups, epoch, lag=run.lag, advantage=advantage),
        objective=Objective(loss),
        publisher=Publisher(announce, transport, epoch=epoch),
        journal=Journal(folder, save, keep_every=run.evaluation.every if run.evaluation else 0),
        life=life,
        metrics=TrainingMetrics(metrics),
    )

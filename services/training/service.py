"""The training service: groups in, weights and commits out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pipeline.bus.bus import Bus
from pipeline.errors import Gone
from pipeline.grades import Point
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.run import Run
from pipeline.watch import Snapshot
from pipeline.watch.waits import GROUPS, OLDER_GROUPS
from pipeline.weights.publisher import Publisher
from services.training.batch import Batch
from services.training.batch import build as build_batch
from services.training.canary import canary_of
from services.training.checkpoints import Checkpoints
from services.training.considered import ZERO_SIGNAL
from services.training.ending import Ending, hopeless, left
from services.training.epochs import Claim
from services.training.evaluations import Evaluations
from services.training.gaming import Gaming
from services.training.imitation import Examples
from services.training.journal import Journal, step_line
from services.training.metrics import Numbers
from services.training.optimize import Optimizer, Step
from services.training.pool import Pool, Tally
from services.training.ranks import Leader
from services.training.records import Record, Records, plan
from services.training.recovery import mark
from services.training.resumption import commit_again
from services.training.standing import Standing
from services.training.starvation import BYS, Starvation
from services.training.window import Window

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.02
EXPIRE_SECONDS = 1.0
LONGEST_ACT_SECONDS = 3600.0


class Training:
    """Consumes groups; publishes weights and commits.

    Waits for groups alone: enough of them for a step, or all that can still come; and for an older
    one that a step now would leave behind for good. They come when engines and scorers have done
    them; a commit frees their places for new prompts, and an engine that has flipped to the
    announced version may take those.

    What a step consumes is on disk before the optimizer moves. Killed at any point, the trainer
    that follows stands where this one stood.
    """

    def __init__(
        self,
        run: Run,
        bus: Bus,
        team: Leader,
        *,
        claimed: Claim,
        standing: Standing,
        pool: Pool,
        optimizer: Optimizer,
        publisher: Publisher,
        records: Records,
        checkpoints: Checkpoints,
        journal: Journal,
        life: Life,
        numbers: Numbers,
        window: int,
        canary: Sequence[int],
        examples: Examples | None = None,
        evaluations: Evaluations | None = None,
        gaming: Gaming | None = None,
    ) -> None:
        """`window` is what is in force now; `canary` are the ids that each version tells of.

        `gaming` has been told of the steps that were made already.
        """
        self.settings, self.bus, self.team = run, bus, team
        self.optimizer, self.publisher, self.journal = optimizer, publisher, journal
        self.records, self.checkpoints = records, checkpoints
        self.life, self.numbers, self.clock = life, numbers, numbers.clock
        self.pool, self.claimed, self.epoch = pool, claimed, claimed.epoch
        self.examples, self.evaluations = examples, evaluations
        self.canary = canary
        self.held_out = _untold(evaluations, journal)  # what no line tells of yet
        self.committed, self.optimizer_step, self.version = standing
        self.gaming = gaming or Gaming()
        self.starvation = Starvation(members=run.groups.members)
        steered, per_step = run.lag.control, run.groups.per_step
        self.control = Window(steered, per_step=per_step, lag_max=run.lag.max) if steered else None
        self.window = window
        self.expire_at = 0.0
        self.held_since: float | None = None
        self.given_up = -1  # groups of this start step or older are waited for no more

    def run(self) -> None:
        """The one finite clock of a run; it ends early where the data does, or a signal comes."""
        self.announce()
        while self.committed < self.settings.steps:
            batch = self.collect()
            if batch is None:
                break
            record = self.record(batch)
            step = self.step(batch, record)
            self.commit(step)
            if step.result.finite:
                self.announce()
            self.write_down(step)
            self.checkpoint()
        self.leave()

    def collect(self) -> Batch | None:
        """Whole groups, oldest first, judged now; None where nothing can come any more."""
        while not self.life.stopping:
            with self.clock("other"):
                self.keep_alive()
                self.publisher.check()
                self.checkpoints.check()
                if self.look() and (batch := self.batch()):
                    return batch if batch.groups else None
            with self.clock("idle", self.waiting_for):
                time.sleep(IDLE_SECONDS)
        return None

    def record(self, batch: Batch) -> Record:
        """All that the step consumes, on disk before it is made: its cargo, then the plan."""
        number, whole = self.committed + 1, self.settings.training.record == "on"
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            record = plan(batch, number=number, epoch=self.epoch, version=self.version)
            record = replace(record, places=self.team.write(record))
            self.claimed.check()
            self.records.write(record, whole=whole)
        return record

    def step(self, batch: Batch, record: Record) -> Step:
        """One optimizer step, taken or not."""
        with self.clock("busy"), self.life.long(None, LONGEST_ACT_SECONDS):
            step = self.optimizer.step(batch, record)
        if self.settings.training.record == "off":
            self.records.forget_cargo(record)
        return step

    def commit(self, step: Step) -> None:
        """Effect in the ledger: the groups are closed, their places are free, the step counts."""
        number, changed, fates = self.committed + 1, step.result.finite, step.batch.fates
        with self.clock("other"):
            self.claimed.check()
            reply = self.bus.groups.commit(self.epoch, batch=number, changed=changed, fates=fates)
            self.committed = number
            self.pool.forget(fates, trained=changed)
            if changed:
                self.version += 1
                self.optimizer_step += 1
                self.pool.made(self.version, self.optimizer_step)
            if reply == "behind":  # the server was put back since the last look
                self.tell_again()

    def announce(self) -> None:
        """Copy the weights out; they are sent, and then announced, while training goes on."""
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            self.life.version = self.version
            self.send()
            self.journal.keep(self.version, self.optimizer_step)
            if self.evaluations:
                self.evaluations.expect(self.version)
                self.checkpoints.awaited = self.evaluations.due

    def send(self) -> None:
        """The weights as they are now, and what the canary shows of them."""
        canary = canary_of(self.team, self.canary)
        weights = self.team.weights()
        self.publisher.publish(self.version, self.optimizer_step, weights, canary=canary)

    def write_down(self, step: Step) -> None:
        """The step as a line of metrics.jsonl, as a log line, and in Prometheus."""
        with self.clock("other"):
            tally = self.pool.tally()
            line = step_line(step, tally) | self.clock.lap() | self.weigh(tally)
            line |= {"batch": self.committed, "step": self.optimizer_step, "version": self.version}
            line["generated_tokens"] = self.bus.generated_tokens()
            line["window"] = self.steer(line)
            self.gaming.observe(line)
            line["gaming"] = msgspec.to_builtins(self.gaming.signs())
            if self.held_out:
                line["held_out"] = msgspec.to_builtins(self.held_out, str_keys=True)
                self.held_out = []
            self.journal.write(line)
            self.numbers.observe(line)
            log.info(
                "step=%d reward=%.3f lag_mean=%.2f tokens=%d grad_norm=%.3f",
                *(line[key] for key in ("step", "reward", "lag_mean", "tokens", "grad_norm")),
            )

    def steer(self, line: Mapping[str, Any]) -> int:
        """The window from now on. Said after each step, so a server that was put back hears it."""
        if self.control is not None:
            self.window = self.control.after(self.window, line)
            self.bus.groups.narrow(self.epoch, batch=self.committed, window=self.window)
        return self.window

    def weigh(self, tally: Tally) -> dict[str, Any]:
        """Whose members are starved, for the line, and for the beat to say by name."""
        self.starvation.observe(tally.sampled, tally.trained)
        self.life.starved = self.starvation.starved()
        least = {by: self.starvation.least(by) for by in BYS}
        return {
            "least_share": {by: one.quotient if one else math.nan for by, one in least.items()},
            "least_shared": {by: one.name for by, one in least.items() if one},
        }

    def checkpoint(self, *, last: bool = False) -> None:
        """Where a trainer that follows begins, every so many batches."""
        is_graded = self.version in self.checkpoints.awaited
        if not (last or is_graded) and self.committed % self.settings.training.checkpoint_every:
            return
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            self.checkpoints.write(mark(self.settings, self.standing), epoch=self.epoch)

    # What the loop is made of.

    @property
    def waiting_for(self) -> str:
        """What a step has to wait for, as the beat says it."""
        return GROUPS if self.held_since is None else OLDER_GROUPS

    def keep_alive(self) -> None:
        """Say that training waits for groups, and end what cannot come any more, now and then.

        A trainer holds no leases, and its epoch is its right to act: a boot that was declared dead
        while the machine slept is replaced, and nothing else changes.
        """
        try:
            self.life.progress(self.waiting_for)
            if time.monotonic() >= self.expire_at:
                self.expire_at = time.monotonic() + EXPIRE_SECONDS
                self.bus.groups.expire(self.life.boot, batch=self.committed)
                snapshot = self.bus.snapshot()
                if ending := hopeless(snapshot.beats):
                    self.finish(ending)
                self.note(snapshot)
        except Gone:
            self.life.reborn()

    def note(self, snapshot: Snapshot) -> None:
        """What an evaluation found, once it is complete: for the next line, and the checkpoints."""
        if self.evaluations is None:
            return
        self.claimed.check()
        if point := self.evaluations.look(snapshot):
            self.held_out.append(point)
            self.numbers.evaluated(point)
        self.checkpoints.awaited = self.evaluations.due

    def look(self) -> bool:
        """What is ready now; False where the server was put back, and had to be told again."""
        if self.pool.look(self.committed):
            return True
        self.tell_again()
        return False

    def tell_again(self) -> None:
        """The server was put back to an older state: say what it has lost.

        Commits before announcements: a version may only be known once its step is.
        """
        log.warning("the server was put back: telling it what it has lost")
        with self.publisher.paused():
            commit_again(self.bus, self.claimed, self.records, self.standing)
            self.publisher.announce_again(after=self.bus.state().version)
        with self.life.long(None, LONGEST_ACT_SECONDS):
            self.send()  # what travelled through the server may be lost with it

    @property
    def standing(self) -> Standing:
        """Where this trainer stands."""
        return Standing(self.committed, self.optimizer_step, self.version)

    def batch(self) -> Batch | None:
        """The next batch, empty where nothing can come any more; None while there is none yet."""
        per_step = self.settings.groups.per_step
        oldest = self.pool.oldest(per_step)
        if not self.pool.exhausted and (len(oldest) < per_step or self.is_held()):
            return None
        self.held_since = None
        return build_batch(
            oldest,
            self.pool.rules,
            examples=self.examples(self.committed + 1) if self.examples else (),
        )

    def is_held(self) -> bool:
        """Whether a step now would starve older groups; those of a start step are waited for once,
        and not long."""
        lag, per_step = self.settings.lag, self.settings.groups.per_step
        if lag.pace == "refuse":
            return False
        late = self.pool.starved(self.pool.oldest(per_step), per_step)
        starved = {start: count for start, count in late.items() if start > self.given_up}
        if not starved:
            return False
        self.held_since = self.held_since or time.monotonic()
        if time.monotonic() - self.held_since < lag.hold_seconds:
            return True
        count, start = sum(starved.values()), max(starved)
        log.warning(
            "waited %.0f s in vain for groups=%d start_step<=%d", lag.hold_seconds, count, start
        )
        self.given_up = start
        return False

    def leave(self) -> None:
        """The last weights go out and are kept; the run is over, or a trainer that follows goes on.

        Where another ended the run first, that word stands.
        """
        complete = self.committed >= self.settings.steps
        snapshot = self.bus.snapshot()
        self.note(snapshot)
        alike = snapshot.ledger.get(ZERO_SIGNAL, Sum(0, 0)).members
        ending = left(
            self.optimizer_step, complete=complete, drained=self.pool.drained, alike=alike
        )
        self.checkpoint(last=True)
        with self.clock("other"), self.life.long(None, LONGEST_ACT_SECONDS):
            self.publisher.flush()
            self.checkpoints.flush()
            self.journal.keep(self.version, self.optimizer_step, last=True)
            self.team.close()
            if ending is not None:
                self.finish(ending)
            else:
                why = self.life.signal or self.life.pulse.reason
                log.info("stopped at step=%d by %s", self.optimizer_step, why)
        self.journal.close()

    def finish(self, ending: Ending) -> None:
        """Everybody hears that the run is over."""
        self.bus.groups.finish(self.epoch, *ending)
        if self.evaluations:
            self.evaluations.end()


def _untold(evaluations: Evaluations | None, journal: Journal) -> list[Point]:
    """What a trainer that was killed had found, and not written down."""
    if evaluations is None:
        return []
    told = journal.held_out()
    return [point for point in evaluations.points() if point.version not in told]

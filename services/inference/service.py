"""The inference service: an engine between the prompts and the completions of a run."""

from __future__ import annotations

import logging
import time

from pipeline import plugins
from pipeline.bus.bus import Bus
from pipeline.bus.leases import Lease
from pipeline.errors import Gone, SluiceError
from pipeline.life import Life
from pipeline.messages import Completion, Work
from pipeline.metrics import Metrics
from pipeline.protocols import ENGINES, TRANSPORTS, Engine, Flip, Transport
from pipeline.run import Run
from pipeline.weights.subscriber import Subscriber
from services.inference.metrics import InferenceMetrics
from services.inference.outbox import Outbox

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.02
HAND_BACK_SECONDS = 2.0


class Inference:
    """Consumes prompts and weights, publishes completions.

    Waits for a first version to serve, then for prompts. A prompt comes when the trainer frees a
    place in the window and this engine's own proven version is fresh enough for it; sequences in
    flight wait for nothing, and a flip takes place between two of their forward passes.
    """

    def __init__(
        self,
        bus: Bus,
        engine: Engine,
        transport: Transport,
        *,
        life: Life,
        metrics: InferenceMetrics,
    ) -> None:
        self.bus, self.engine, self.transport = bus, engine, transport
        self.life, self.metrics, self.clock = life, metrics, metrics.clock
        self.weights = Subscriber(bus.versions, engine)
        self.leases: dict[str, Lease[Work]] = {}
        self.outbox = Outbox(self.weights.proven)
        self.flip: Flip | None = None
        self.take_at = 0.0

    def run(self) -> None:
        """Until the run is over, or a signal asks for a stop."""
        self.weights.start()
        while not self.life.stopping:
            try:
                self.admit()
                self.flip_if_staged()
                self.deliver(self.step())
            except Gone:
                self.start_over()
        self.hand_back()

    def admit(self) -> None:
        """Take as many prompts as the engine has room for; sleep a little if there is no work."""
        self.clock.turn()
        with self.clock("other"):
            for group in self.life.progress(self.waiting_for, held=tuple(self.leases)):
                self.forget(group)
            taken = self.take()
            for lease in taken:
                self.accept(lease)
        if not (taken or self.engine.busy):
            self.metrics.gaps.interrupt()
            with self.clock("idle"):
                self.weights.wait(IDLE_SECONDS)

    def flip_if_staged(self) -> None:
        """Stage what was announced, in the background; adopt what is whole, between two passes."""
        with self.clock("other"):
            if manifest := self.weights.poll():
                self.engine.stage(manifest, self.transport)
            if error := self.engine.staging_error():
                self.reject(error)
            self.flip = None if self.weights.pending else self.engine.flip()
            if self.flip:
                self.weights.confirm(self.flip.version)
                self.life.version = self.flip.version
                self.metrics.flips.inc()

    def step(self) -> list[Completion]:
        """One forward pass, if anything is in flight; the members that finished in it."""
        if not self.engine.busy:
            return []
        with self.clock("busy"):
            finished = self.engine.step()
        times = self.engine.last_step
        self.metrics.gaps.observe(
            ended=times.ended, prefill=times.prefill, flipped=self.flip is not None
        )
        self.metrics.sequences.set(times.rows)
        return finished

    def deliver(self, finished: list[Completion]) -> None:
        """Send what is finished and proven; the rest waits in the outbox for its proof."""
        with self.clock("other"):
            for completion in finished:
                self.outbox.put(self.leases[completion.group], completion)
            ready = self.outbox.proven()
            if not ready:
                return
            replies = self.bus.prompts.deliver(self.life.boot, ready)
            for (lease, completion), reply in zip(ready, replies, strict=True):
                if reply == "gone":
                    raise Gone(f"{self.life.boot} was declared dead")
                if reply != "unproven":
                    self.settle(lease, completion)

    # What the loop is made of.

    @property
    def waiting_for(self) -> str | None:
        """What this process waits for, as its beat says it."""
        if self.engine.busy:
            return None
        return "weights" if self.engine.version < 0 or self.weights.pending else "prompts"

    def take(self) -> list[Lease[Work]]:
        """New leases, at most as many as there is room for."""
        room = self.engine.room() if self.weights.serves(self.engine.version) else 0
        if room <= 0 or time.monotonic() < self.take_at:
            return []
        held = [lease.entry for lease in self.leases.values()]
        taken = self.bus.prompts.take(
            self.life.boot, version=self.engine.version, held=held, count=room
        )
        if not taken.leases:
            self.take_at = time.monotonic() + IDLE_SECONDS
        return taken.leases

    def accept(self, lease: Lease[Work]) -> None:
        """Begin with a group; one that cannot be attempted fails, with the reason."""
        try:
            self.engine.add(lease.work)
        except SluiceError as exc:
            log.warning("group=%s refused: %s", lease.group, exc)
            self.bus.prompts.fail(self.life.boot, lease, str(exc))
        else:
            self.leases[lease.group] = lease
            self.outbox.expect(lease)

    def settle(self, lease: Lease[Work], completion: Completion) -> None:
        """A member is delivered; its group is let go with the last one."""
        self.outbox.settle(completion)
        self.metrics.members.inc()
        own = (span.tokens for span in completion.spans if span.boot == self.life.boot)
        self.metrics.tokens.inc(sum(own))
        if self.outbox.complete(lease.group):
            self.forget(lease.group)

    def forget(self, group: str) -> None:
        """The group is done, or was closed elsewhere."""
        self.leases.pop(group, None)
        self.engine.drop(group)
        self.outbox.forget(group)

    def reject(self, error: str) -> None:
        """A version that could not be staged: the old one serves on, and everybody hears why."""
        log.error("staging failed, version=%d serves on: %s", self.engine.version, error)
        self.metrics.staging_errors.inc()
        self.bus.versions.reject(self.life.boot, self.weights.offered, error)

    def start_over(self) -> None:
        """This boot was declared dead, and its work is others' now: drop it all."""
        dropped = sum(completion.tokens for completion in self.engine.park())
        self.metrics.lost_tokens.inc(dropped)
        self.leases.clear()
        self.outbox.clear()
        self.engine.boot = self.life.reborn()
        self.weights.restart()
        log.warning("boot=%s starts over, dropped_tokens=%d", self.life.boot, dropped)

    def hand_back(self) -> None:
        """Before leaving: deliver what is proven, save prefixes, and free the leases for others."""
        if not self.life.pulse.stop:
            with self.life.long("hand back", HAND_BACK_SECONDS + 10):
                self.save_all()
        self.weights.close()
        self.engine.close()

    def save_all(self) -> None:
        """Each sequence in flight as a prefix that another engine resumes."""
        if self.weights.pending:
            self.weights.wait(HAND_BACK_SECONDS)
        self.deliver([])
        for prefix in self.engine.park():
            if self.outbox.may_leave(prefix):
                self.bus.prompts.save(self.life.boot, self.leases[prefix.group], prefix)
        self.bus.prompts.give_back(self.life.boot, list(self.leases.values()))


def build(run: Run, bus: Bus, *, life: Life, metrics: Metrics) -> Inference:
    """The composition root: raises ConfigError for an engine or a model that cannot be had."""
    with life.long("model", 600):
        engine: Engine = plugins.make(
            ENGINES,
            run.inference.engine,
            run.model,
            at="inference.engine",
            boot=life.boot,
            swap=run.inference.swap,
        )
    transport: Transport = plugins.make(TRANSPORTS, run.weights, at="weights", run=run.name)
    return Inference(bus, engine, transport, life=life, metrics=InferenceMetrics(metrics))

"""The inference service: an engine between the prompts and the completions of a run."""

from __future__ import annotations

import logging
import math
import time

from pipeline.bus.bus import Bus
from pipeline.bus.chunks import head
from pipeline.bus.connection import patience
from pipeline.bus.errors import Unreachable
from pipeline.bus.leases import Lease
from pipeline.errors import EngineLost, Gone, SluiceError
from pipeline.life import TRY_SECONDS, Life
from pipeline.messages import Completion, Span, Work
from pipeline.protocols import Engine, Flip, Transport
from pipeline.watch.waits import FRESHER, PROMPTS, QUARANTINE, WEIGHTS
from pipeline.weights.direct import Direct
from pipeline.weights.subscriber import Subscriber
from pipeline.weights.visit import ANSWER_SECONDS
from services.inference.canary import Examiner
from services.inference.courier import Answer, Courier, Request
from services.inference.lanes import Lanes
from services.inference.metrics import Numbers
from services.inference.openai.guests import Guests
from services.inference.openai.inbox import Inbox
from services.inference.outbox import Outbox
from services.inference.prefixes import Chunks, hand_over

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.02
HAND_BACK_SECONDS = 2.0
GOODBYE_SECONDS = 1.0

WAITS = {"flip": FRESHER, "quarantined": QUARANTINE}
"""What an idle engine waits for, by the last reply to a take, if not for prompts."""
OVER = ("closed", "late")
"""What the bus says of a member whose group has ended, or is whole without it."""


class Inference:
    """Consumes prompts and weights, publishes completions.

    Waits for a first version to serve, then for prompts. A prompt comes when the trainer frees a
    place in the window and this engine's own proven version is fresh enough for it; sequences in
    flight wait for nothing, and a flip takes place between two of their forward passes. Held-out
    prompts come beside those, while this engine keeps the version that they are pinned to.

    Cut off the network it goes on with what it has; once it is back, the bus says what of that is
    still its own.
    """

    def __init__(
        self,
        bus: Bus,
        engine: Engine,
        transport: Transport,
        *,
        life: Life,
        numbers: Numbers,
        evaluate_every: int = 0,
        canary_every: int = 0,
        canary_gap: float = math.inf,
        inbox: Inbox | None = None,
    ) -> None:
        """Of `evaluate_every` versions one is kept until its evaluation is over; 0: none.

        Of `canary_every` flips one is examined, and wrong beyond `canary_gap` nats; 0: none.
        Guests come in by the `inbox`.
        """
        self.bus, self.engine, self.transport = bus, engine, transport
        self.life, self.numbers, self.clock = life, numbers, numbers.clock
        self.lanes = Lanes(engine, every=evaluate_every)
        self.weights = Subscriber(bus.versions, engine)
        self.outbox = Outbox(self.weights.proven)
        self.chunks = Chunks(self.outbox)
        self.courier = Courier(bus.prompts)
        self.guests = Guests(
            inbox or Inbox(0), engine, weights=self.weights, num_proven=self.outbox.num_proven
        )
        self.flip: Flip | None = None
        self.examiner = Examiner(engine, numbers, limit=canary_gap, every=canary_every)
        numbers.watch(engine)
        self.take_at, self.gate = 0.0, "ok"

    def run(self) -> None:
        """Until the run is over, or a signal asks for a stop."""
        self.weights.start()
        self.courier.start()
        try:
            while not self.life.stopping:
                self.turn()
        except EngineLost:  # what it sampled until then is whole, and others go on with it
            self.hand_back()
            raise
        self.hand_back()

    def turn(self) -> None:
        """One of the loop."""
        try:
            self.admit()
            self.flip_if_staged()
            self.deliver(self.step())
        except (Gone, Unreachable):
            self.start_over()

    def admit(self) -> None:
        """Begin with what was taken, and ask for more; sleep a little if there is no work."""
        with self.clock("other"):
            for group in self.life.progress(self.waiting_for, held=tuple(self.outbox.leases)):
                self.abandon(group)
            self.let_go_if_over()
            for lease in self.taken():
                self.accept(lease)
            self.ask()
            self.guests.admit()
        if not self.lanes.busy:
            self.numbers.gaps.interrupt()
            with self.clock("idle", self.waiting_for or PROMPTS):
                wait = self.courier.wait if self.courier.away else self.weights.wait
                wait(IDLE_SECONDS)

    def flip_if_staged(self) -> None:
        """Stage what was announced, in the background; adopt what is whole, between two passes."""
        with self.clock("other"):
            if error := self.engine.staging_error():
                self.reject(error)
            if self.weights.wrong:
                self.revert(self.weights.wrong)
            if manifest := self.weights.poll():
                self.examiner.expect(manifest)
                self.engine.stage(manifest, self.transport)
            self.flip = None if self.weights.pending else self.flip_now()
            if self.flip:
                self.adopt(self.flip)

    def step(self) -> list[Completion]:
        """One forward pass, if anything is in flight; the members that finished in it."""
        if not self.lanes.busy:
            return []
        with self.clock("busy"):
            finished, times = self.lanes.step()
        self.numbers.stepped(times, self.engine.device, flipped=self.flip is not None)
        return finished

    def deliver(self, finished: list[Completion]) -> None:
        """Send what is finished and proven; the rest waits in the outbox for its proof."""
        with self.clock("other"):
            for completion in self.guests.take(finished):
                self.outbox.put(completion)
            is_time = self.lanes.busy and self.chunks.is_time()
            due = self.chunks.due(self.prefixes()) if is_time else []
            self.courier.leave(self.life.boot, members=self.outbox.leaving(), prefixes=due)
            self.hear_all()

    # What the loop is made of.

    def flip_now(self) -> Flip | None:
        """A direct transport brings the version in the flip itself: that may be long."""
        transport = self.transport
        if not isinstance(transport, Direct) or self.weights.offered <= self.engine.version:
            return self.engine.flip()
        with self.life.long(self.waiting_for, transport.timeout_seconds + ANSWER_SECONDS):
            return self.engine.flip()

    @property
    def waiting_for(self) -> str | None:
        """What this process waits for, as its beat says it."""
        if self.lanes.busy and self.outbox.leases:
            return None
        is_proven = self.weights.serves(self.engine.version)
        return WAITS.get(self.gate, PROMPTS) if is_proven else WEIGHTS

    def prefixes(self) -> list[Completion]:
        """Of what is in flight for the run."""
        return [p for p in self.lanes.prefixes() if p.group in self.outbox.leases]

    def ask(self) -> None:
        """For as many groups as there is room for, once the last answer was heard."""
        if not self.weights.serves(self.engine.version):
            return
        room, pinned_room = max(0, self.engine.room()), max(0, self.lanes.pinned_room())
        if room + pinned_room == 0 or self.courier.asked or time.monotonic() < self.take_at:
            return
        held = tuple(lease.entry for lease in self.outbox.leases.values())
        request = Request(self.engine.version, held, room, self.life.pinned, pinned_room)
        self.courier.leave(self.life.boot, request=request)

    def taken(self) -> list[Lease[Work]]:
        """The leases that were asked for, if they are here by now."""
        taken = self.courier.taken()
        if taken is None:
            return []
        self.gate = taken.status
        if taken.status == "unproven":
            needed = (self.engine.version, self.lanes.pinned)
            self.weights.doubt([Span(version, 0, self.life.boot) for version in needed])
        if not taken.leases:
            self.take_at = time.monotonic() + IDLE_SECONDS
        return taken.leases

    def accept(self, lease: Lease[Work]) -> None:
        """Begin with a group; one that cannot be attempted fails, with the reason."""
        if not self.lanes.takes(lease.work):  # it let go of those weights meanwhile
            self.bus.prompts.give_back(self.life.boot, [lease])
            return
        try:
            self.lanes.add(lease.work)
        except SluiceError as exc:
            log.warning("group=%s refused: %s", lease.group, exc)
            self.bus.prompts.fail(self.life.boot, lease, str(exc))
        else:
            self.outbox.expect(lease)

    def hear_all(self) -> None:
        """What came back since the last time. Raises what the bus did."""
        for answer in self.courier.answers():
            self.hear(answer)

    def hear(self, answer: Answer) -> None:
        """What the bus says of a member that was delivered, or of one that was saved."""
        if answer.reply == "gone":
            raise Gone(f"{self.life.boot} was declared dead")
        if answer.completion.finish:
            self.settle(*answer)
        elif answer.reply == "ok":
            self.numbers.saved(answer.completion, self.life.boot)
        else:
            self.chunks.failed(answer.completion)
        if answer.reply in OVER and answer.lease.group in self.outbox.leases:
            self.abandon(answer.lease.group)  # rather than with the next beat

    def settle(self, lease: Lease[Work], completion: Completion, reply: str) -> None:
        """A member is delivered, or never will be; its group is let go with the last one.

        An answer about an attempt that was taken back says nothing: the next one is told the same.
        """
        if not self.outbox.has(completion):
            return
        if reply == "unproven" and self.outbox.is_first_denial(completion):
            self.weights.doubt(completion.spans)
            return
        if reply == "unproven":
            reason = f"unproven: {completion.spans} name weights that nobody has proven"
            self.bus.prompts.fail(self.life.boot, lease, reason, completion.member)
        self.numbers.delivered(completion, self.life.boot, reply)
        self.outbox.settle(completion)
        if self.outbox.is_complete(lease.group):
            self.forget(lease.group)

    def abandon(self, group: str) -> None:
        """The group was closed elsewhere: what is in flight of it is dropped."""
        dropped = [p for p in self.lanes.prefixes() if p.group == group]
        self.numbers.lost(dropped, self.life.boot)
        self.forget(group)

    def forget(self, group: str) -> None:
        """No member of the group is to come."""
        self.lanes.drop(group)
        self.outbox.forget(group)
        self.chunks.forget(group)

    def adopt(self, flip: Flip) -> None:
        """The engine flipped: have that proven. What fails the canary samples nothing."""
        self.life.version = flip.version
        self.numbers.flipped(flip)
        if fault := self.examiner.fault(flip.version):
            self.weights.refuse(flip.version, fault)
            self.revert(fault)
        else:
            self.weights.confirm(flip.version)
            self.keep_if_due()

    def revert(self, reason: str) -> None:
        """A flip was wrong: go on with the former weights, from the last token that was proven."""
        log.error("%s: going back to the weights before it", reason)
        self.numbers.wrong_flips.inc()
        if self.lanes.pinned == self.engine.version:
            self.let_go()
        with self.guests.aside():
            self.numbers.dropped(self.engine.revert())
        for done in self.outbox.take_back():
            prefix = head(done, self.outbox.num_proven(done))
            self.numbers.dropped(done.tokens - prefix.tokens)
            if lease := self.outbox.leases.get(done.group):
                self.lanes.add(again(lease.work, prefix))
        self.life.version = self.engine.version
        self.weights.reverted()
        self.bus.versions.reject(self.life.boot, self.weights.offered, reason)

    def reject(self, error: str) -> None:
        """A version that could not be staged: the old one serves on, and everybody hears why."""
        log.error("staging failed, version=%d serves on: %s", self.engine.version, error)
        self.numbers.staging_errors.inc()
        try:
            with patience(TRY_SECONDS):
                self.bus.versions.reject(self.life.boot, self.weights.offered, error)
        except Unreachable as exc:  # that may be why it failed, and what is in hand can go on
            log.warning("nobody hears of it: %s", exc)
        finally:
            self.weights.failed(error)

    def let_go_if_over(self) -> None:
        """The evaluation of the version that is kept has ended, or never will begin; so it is of
        one that was rolled back.

        None begins before the version is proven, since that may prove wrong.
        """
        pinned, last = self.lanes.pinned, self.life.pulse.evaluated
        if 0 <= pinned <= last or self.weights.is_forgotten(pinned):
            self.let_go()
            self.keep_if_due()
        pinned = self.lanes.pinned
        self.life.pinned = pinned if self.weights.serves(pinned) else -1

    def keep_if_due(self) -> None:
        """What the engine serves, if that is to be evaluated and nothing is kept yet."""
        version = self.engine.version
        if version > self.life.pulse.evaluated and not self.weights.is_forgotten(version):
            self.lanes.keep_if_due()

    def let_go(self) -> None:
        """Keep no version for an evaluation any more."""
        self.numbers.lost(self.lanes.let_go(), self.life.boot)
        self.life.pinned = -1

    def start_over(self) -> None:
        """This boot was declared dead, and its work is others' now; or an answer was missed that
        this one cannot do without, and a boot that is not heard of any more is dead soon.
        """
        log.warning("boot=%s starts over", self.life.boot)
        self.guests.turn_away("this engine starts over: what it had in hand is lost")
        self.drop_all()
        self.engine.boot = self.life.reborn()
        self.weights.restart()
        self.keep_if_due()

    def drop_all(self) -> None:
        """Nothing that is in flight, or waits for its proof, is of use any more."""
        self.courier.clear()
        self.numbers.lost([*self.lanes.park(), *self.outbox.clear()], self.life.boot)
        self.let_go()
        self.chunks = Chunks(self.outbox)

    def hand_back(self) -> None:
        """Before leaving: deliver what is proven, save prefixes, and free the leases for others."""
        self.guests.turn_away("this engine leaves the run")
        try:
            if not self.life.pulse.stop:
                with self.life.long("hand back", HAND_BACK_SECONDS + 10):
                    self.weights.await_proof(HAND_BACK_SECONDS)
                    for _ in range(2):  # the second time what could not leave before
                        self.deliver([])
                        self.courier.wait(HAND_BACK_SECONDS)
                        self.hear_all()  # and nothing is left to carry what is handed over here
                    for lease in self.taken():
                        self.outbox.expect(lease)
                    running, boot = self.lanes.park(), self.life.boot
                    hand_over(
                        self.bus.prompts, boot, running, outbox=self.outbox, numbers=self.numbers
                    )
        except Gone:
            log.warning("boot=%s had nothing left to hand back", self.life.boot)
        except Unreachable as exc:
            log.warning("boot=%s handed nothing back: %s", self.life.boot, exc)
        self.drop_all()
        self.courier.close()
        self.weights.close()
        self.engine.close()
        self.guests.inbox.await_empty(GOODBYE_SECONDS)


def again(work: Work, prefix: Completion) -> Work:
    """One member of a group, from the end of its prefix on."""
    m = prefix.member
    return Work(prompt=work.prompt, todo=(m,), prefixes={m: prefix} if prefix.tokens else {})

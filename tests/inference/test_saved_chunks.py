"""What is running is saved now and then, so that a kill takes little along."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from planted_run import Plant, Running, alone, ids, wait_until

from pipeline.bus.leases import Lease
from pipeline.ledger import Sum
from pipeline.messages import Completion, Prompt, Sampling, Span, Work
from services.inference.outbox import Outbox
from services.inference.prefixes import CHUNK_TOKENS, LEAST_STEPS, Chunks

Start = Callable[..., Running]
LONG = 600


def generated(plant: Plant) -> int:
    return plant.ledger().get("generated", Sum(0, 0)).tokens


def test_a_killed_engine_loses_what_came_after_the_last_chunk_and_no_more(
    plant: Plant, start: Start
) -> None:
    [prompt] = plant.admit(tokens=LONG)
    first = start(plant, steps=CHUNK_TOKENS + 40)
    first.flown(2 * (CHUNK_TOKENS + 40))
    wait_until(lambda: generated(plant) == 2 * CHUNK_TOKENS)
    assert plant.ledger() == {"generated": Sum(0, 2 * CHUNK_TOKENS)}
    wait_until(lambda: first.total("tokens") == 2 * CHUNK_TOKENS)
    boot = first.life.boot
    second = start(plant, "second")
    plant.bus.bury("engine")
    wait_until(lambda: first.life.boot != boot)
    first.engine.allow(LONG)  # under its new name it may be the one that takes over
    done = plant.await_delivered(2)
    heirs = {first.life.boot, second.life.boot}
    [(kept, rest)] = {c.spans for c in done}
    assert kept == Span(0, CHUNK_TOKENS, boot)
    assert (rest.version, rest.tokens) == (0, LONG - CHUNK_TOKENS) and rest.boot in heirs
    assert ids(done) == ids(alone(prompt))
    assert {len(c.logprobs) for c in done} == {4 * LONG}
    wait_until(lambda: first.total("lost_tokens") == 2 * 40)
    wait_until(lambda: first.total("tokens") + second.total("tokens") == 2 * LONG)
    assert plant.ledger()["generated"] == Sum(2, 2 * LONG) and plant.is_balanced()


def test_an_undisturbed_member_is_counted_once_however_often_it_was_saved(
    plant: Plant, start: Start
) -> None:
    plant.admit(tokens=LONG)
    running = start(plant)
    assert {c.spans for c in plant.await_delivered(2)} == {(Span(0, LONG, running.life.boot),)}
    wait_until(lambda: running.total("members") == 2)
    assert running.total("tokens") == 2 * LONG and running.total("lost_tokens") == 0
    assert plant.ledger() == {"generated": Sum(2, 2 * LONG)} and plant.is_balanced()


def test_only_proven_tokens_are_saved(plant: Plant, start: Start) -> None:
    plant.admit(tokens=LONG)
    first = start(plant, steps=200)
    first.flown(400)
    first.engine.may_prove.clear()
    plant.announce(1)
    wait_until(lambda: first.engine.version == 1)
    first.engine.allow(200)
    first.flown(800)
    wait_until(lambda: generated(plant) == 400)
    second = start(plant, "second", steps=0)
    plant.bus.bury("engine")
    wait_until(lambda: second.tokens_in_flight() == 400)
    spans = {prefix.spans for prefix in second.engine.prefixes()}
    assert spans == {(Span(0, 200, first.life.boot),)}
    first.engine.may_prove.set()


class _Held:
    """Members of several lengths, as an engine would hand them out, and a proof that may lack."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = list(lengths)
        self.outbox = Outbox(lambda span: span.version == 0)
        prompt = Prompt(group="g", seq=0, ids=b"", members=9, sampling=Sampling())
        todo = tuple(range(len(lengths)))
        self.outbox.expect(Lease("1-0", "g", Work(prompt=prompt, todo=todo)))

    def running(self) -> list[Completion]:
        empty = Completion(group="g", member=0, ids=b"", logprobs=b"", spans=())
        return [
            replace(
                empty, member=m, ids=bytes(4 * n), logprobs=bytes(4 * n), spans=(Span(0, n, "b"),)
            )
            for m, n in enumerate(self.lengths)
        ]


def test_no_member_ever_has_more_than_a_chunk_unsaved_and_looks_are_rare() -> None:
    held = _Held(*range(0, 250, 10))
    chunks, looks, saved = Chunks(held.outbox), 0, dict.fromkeys(range(25), 0)
    for _ in range(2000):
        held.lengths = [length + 1 for length in held.lengths]
        if chunks.is_time():
            looks += 1
            for _, prefix in chunks.due(held.running()):
                saved[prefix.member] = prefix.tokens
        # Until the first look nobody knows how long they are: an engine begins with none.
        if looks:
            gaps = [length - saved[m] for m, length in enumerate(held.lengths)]
            assert max(gaps) <= CHUNK_TOKENS
    assert looks <= 2000 / (CHUNK_TOKENS / 2) + 1


def test_while_a_proof_lacks_looks_are_still_rare() -> None:
    held = _Held(0)
    held.outbox = Outbox(lambda span: False)
    held.outbox.expect(Lease("1-0", "g", Work(prompt=_PROMPT, todo=(0,))))
    chunks, looks = Chunks(held.outbox), 0
    for _ in range(CHUNK_TOKENS + 10 * LEAST_STEPS):
        held.lengths[0] += 1
        if chunks.is_time():
            looks += 1
            assert chunks.due(held.running()) == []
    assert looks == 11


_PROMPT = Prompt(group="g", seq=0, ids=b"", members=9, sampling=Sampling())

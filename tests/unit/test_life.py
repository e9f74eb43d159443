"""The beat of a process: what its thread and its main loop owe each other."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Iterator, Sequence

import pytest

from pipeline.bus.bus import Bus, Pulse
from pipeline.errors import ConfigError, Gone, SluiceError
from pipeline.life import Life
from pipeline.messages import Beat
from pipeline.metrics import Metrics

PATIENCE_SECONDS = 20.0


class Wire(Bus):
    """A bus that has nothing but beats, and answers them as it is told."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.errors: list[Exception] = []
        self.closed: list[tuple[str, ...]] = []
        self.arrived, self.may_answer = threading.Semaphore(0), threading.Event()
        self.may_answer.set()

    def beat(self, beat: Beat, held: Sequence[str] = ()) -> Pulse:
        error = self.errors.pop(0) if self.errors else None
        closed = self.closed.pop(0) if self.closed else ()
        self.beats.append(beat)
        self.arrived.release()
        assert self.may_answer.wait(PATIENCE_SECONDS)
        if error:
            raise error
        return Pulse(version=0, step=0, stop="", reason="", closed=closed)

    def await_beat(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def life(wire: Wire) -> Iterator[Life]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    life = Life(wire, "inference", "engine", metrics=Metrics("inference"), beat_seconds=0.02)
    life.start()
    wire.await_beat()
    yield life
    wire.may_answer.set()
    life.end()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_the_former_boot_hears_does_not_end_the_new_one(life: Life, wire: Wire) -> None:
    wire.may_answer.clear()
    wire.errors, wire.closed = [Gone("the former one")], []
    wire.await_beat()  # the thread's, of the former boot, on its way
    reborn = threading.Thread(target=life.reborn)
    reborn.start()
    wire.await_beat()
    wire.may_answer.set()
    reborn.join(PATIENCE_SECONDS)
    wire.await_beat()
    assert life.progress() == set()
    assert len({beat.boot for beat in wire.beats}) == 2


def test_a_boot_that_was_declared_dead_hears_it_until_it_is_born_again(
    life: Life, wire: Wire
) -> None:
    wire.errors = [Gone("dead")]
    wire.await_beat()
    for _ in range(2):
        with pytest.raises(Gone):
            while True:
                life.progress()
    life.reborn()
    assert life.progress() == set()


def test_closed_groups_are_told_once(life: Life, wire: Wire) -> None:
    wire.closed = [("g1", "g2")]
    wire.await_beat()
    wire.await_beat()  # so that the answer to the first is known
    assert life.progress() == {"g1", "g2"} and life.progress() == set()


def test_whatever_ends_the_thread_that_beats_ends_the_process(life: Life, wire: Wire) -> None:
    wire.errors = [RuntimeError("a bug in a gauge")]
    wire.await_beat()
    life._thread.join(PATIENCE_SECONDS)
    with pytest.raises(RuntimeError, match="a bug in a gauge"):
        life.progress()


def test_an_outage_of_the_server_ends_no_beat(life: Life, wire: Wire) -> None:
    wire.errors = [SluiceError("the server does not answer")]
    wire.await_beat()
    wire.await_beat()
    assert life.progress() == set()


def test_a_last_beat_that_fails_does_not_hide_why_the_process_ends(life: Life, wire: Wire) -> None:
    def die() -> None:
        try:
            raise ConfigError("model.path", "gone", rule="is not there", remedy="make it")
        finally:
            wire.errors = [SluiceError("the server is gone as well")]
            life.end()

    with pytest.raises(ConfigError):
        die()


def test_every_boot_of_a_process_says_the_same_instance_and_pid(life: Life, wire: Wire) -> None:
    life.reborn()
    names = {(beat.instance, beat.pid) for beat in wire.beats}
    assert len(names) == 1 and len({beat.boot for beat in wire.beats}) == 2


def test_a_declared_act_ends_with_its_error_too(life: Life) -> None:
    def fail() -> None:
        with life.long("model", 600):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert life._waiting_for == "start"


def test_a_users_fault_survives_the_way_out_of_another_process() -> None:
    fault = ConfigError("data.path", "gone.jsonl", rule="cannot be read", remedy="make it")
    told = pickle.loads(pickle.dumps(fault))
    assert str(told) == str(fault) and type(told) is ConfigError
    assert (told.where, told.value, told.rule, told.remedy) == (
        "data.path",
        "gone.jsonl",
        "cannot be read",
        "make it",
    )

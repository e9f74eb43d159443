"""The beat of a process: what its thread and its main loop owe each other."""

from __future__ import annotations

import logging
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from pipeline.bus.bus import Bus, Pulse
from pipeline.bus.errors import Unreachable
from pipeline.errors import ConfigError, Gone, SluiceError
from pipeline.life import Life
from pipeline.messages import Beat
from pipeline.metrics import Metrics

PATIENCE_SECONDS, BEAT_SECONDS = 20.0, 0.02


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

    def next_beat(self) -> Beat:
        """One that was begun from now on: the first to come may be on its way already."""
        known = len(self.beats) + 1
        while len(self.beats) <= known:
            self.await_beat()
        return self.beats[-1]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def life(wire: Wire) -> Iterator[Life]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    life = Life(
        wire, "inference", "engine", metrics=Metrics("inference"), beat_seconds=BEAT_SECONDS
    )
    life.start()
    wire.await_beat()
    yield life
    wire.may_answer.set()
    life.end()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_the_former_boot_hears_does_not_end_the_new_one(life: Life, wire: Wire) -> None:
    wire.may_answer.clear()
    former, wire.errors = life.boot, [Gone("the former one")]
    while wire.errors:  # until the thread's, of the former boot, is on its way
        wire.await_beat()
    reborn = threading.Thread(target=life.reborn)
    reborn.start()
    while wire.beats[-1].boot == former:
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


def test_what_is_done_with_each_beat_may_fail_as_the_beat_may(life: Life, wire: Wire) -> None:
    done, failed = threading.Semaphore(0), SluiceError("the server is away")

    def look() -> None:
        done.release()
        raise failed

    life.also = look
    assert all(done.acquire(timeout=PATIENCE_SECONDS) for _ in range(3))
    assert wire.next_beat() and life.progress() == set()


def test_a_beat_carries_the_counters_that_have_counted(life: Life, wire: Wire) -> None:
    errors = life._metrics.counter_by("errors", "Any.", reason=("timeout", "raised"))
    errors.labels(reason="raised").inc(2)
    assert wire.next_beat().totals == {'errors{reason="raised"}': 2}


def test_a_beat_says_what_the_loop_waits_for(life: Life, wire: Wire) -> None:
    for what in ("prompts", None):
        life.progress(waiting_for=what)
        assert wire.next_beat().waiting_for == what
    with life.long("model", 600):
        assert wire.next_beat().waiting_for == "model"


def test_a_loop_that_makes_no_progress_falls_silent(life: Life, wire: Wire) -> None:
    life.progress()
    with life.long("prompts", 0):  # longer than it said
        assert not life.healthy
        while wire.arrived.acquire(timeout=10 * BEAT_SECONDS):
            assert len(wire.beats) < 100
    wire.await_beat()
    assert life.healthy


def test_a_beat_says_since_when_and_a_wait_that_was_served_begins_anew(
    life: Life, wire: Wire
) -> None:
    began = time.monotonic()
    life.progress("prompts")
    wire.next_beat()
    asked_again = time.monotonic()
    life.progress("prompts")
    waited = wire.next_beat().waited_seconds
    assert waited < time.monotonic() - began
    assert waited > asked_again - began
    for what, moved in (("prompts", True), ("weights", False)):
        began = time.monotonic()
        life.progress(what, moved=moved)
        assert wire.next_beat().waited_seconds < time.monotonic() - began


def test_a_beat_says_how_long_the_loop_has_been_in_one_turn(life: Life, wire: Wire) -> None:
    life.progress()
    first, second = wire.next_beat(), wire.next_beat()
    assert second.turn_seconds > first.turn_seconds > 0
    with life.long("model", 600):
        assert wire.next_beat().turn_seconds == 0


def test_a_loop_that_hangs_is_why_the_process_is_not_ready(life: Life) -> None:
    life.progress()
    assert life.trouble == ""
    with life.long("prompts", 0):
        assert life.trouble.startswith("its loop has made no turn for")


def test_an_outage_is_told_once_and_so_is_its_end(
    life: Life, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wire.errors = [SluiceError("the server is full") for _ in range(3)]
    while wire.errors:
        wire.await_beat()
    wire.next_beat()
    wire.next_beat()
    said = [record.message for record in caplog.records if record.name == "pipeline.life"]
    assert said[0] == "beat failed: the server is full"
    assert said[1:] == ["beats are answered again"]


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


def test_every_boot_of_a_process_says_that_it_is_the_same(life: Life, wire: Wire) -> None:
    life.reborn()
    names = {(beat.instance, beat.pid, beat.process) for beat in wire.beats}
    assert len(names) == 1 and len({beat.boot for beat in wire.beats}) == 2


def test_a_process_is_not_taken_for_the_one_before_that_had_its_name_and_pid() -> None:
    lives = [Life(Wire(), "inference", "engine@box-7", metrics=Metrics("inference")) for _ in "ab"]
    assert lives[0].process != lives[1].process


def test_a_declared_act_ends_with_its_error_too(life: Life) -> None:
    def fail() -> None:
        with life.long("model", 600):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert life.waiting_for == "start"


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


def test_without_a_server_the_loop_goes_on_for_as_long_as_it_may(wire: Wire) -> None:
    metrics = Metrics("inference")
    life = Life(
        wire, "inference", "engine", metrics=metrics, beat_seconds=BEAT_SECONDS, outage_seconds=0.2
    )
    life.start()
    wire.errors = [Unreachable("redis://far does not answer")] * 3
    while wire.errors:
        life.progress()
    for _ in range(12):  # longer than it may be away
        wire.next_beat()
        life.progress()
    wire.errors = [Unreachable("redis://far does not answer")] * 1000
    with pytest.raises(SluiceError, match=r"no server for 0 s: redis://far does not answer"):
        while True:
            life.progress()
    with pytest.raises(SluiceError, match="no server"):
        life.reborn()
    wire.errors = []
    life.end()

"""The trainer's loop over a real bus, with groups that were planted: what it takes, what it books,
what it announces, and how it ends."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from planted import MODEL, Stream, Trainer, losses_told, made_run, wait_until

from pipeline.bus.bus import Bus
from pipeline.bus.connection import client_of
from pipeline.errors import Fenced
from pipeline.ledger import Sum
from pipeline.life import Life
from pipeline.messages import Completion, Manifest, Score
from pipeline.metrics import Metrics
from pipeline.model.fingerprint import fingerprint, named_parameters
from pipeline.model.load import load_model
from pipeline.run import Lag, Objective
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE, EXIT_FAILED, EXIT_FENCED, exit_code
from pipeline.weights.publisher import Publisher
from pipeline.weights.redis import RedisTransport
from pipeline.weights.shm import ShmTransport
from services.process import open_run
from services.training.build import build
from services.training.epochs import claim

Start = Callable[..., tuple[Stream, Trainer]]


@pytest.fixture
def start(
    server_url: str, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """A trainer that runs, and the stream that feeds it; version 0 is proven already."""
    monkeypatch.chdir(tmp_path)
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    opened: list[Any] = []

    def started(*, serve: bool = True, **keys: Any) -> tuple[Stream, Trainer]:
        weights = keys.pop("weights", {"use": "shm", "folder": str(tmp_path)})
        run = made_run(run_name, weights=weights, **keys)
        stream = Stream(server_url, run)
        opened.append(stream.bus)
        trainer = Trainer(server_url, run)
        opened.append(trainer)
        trainer.start()
        if serve:
            stream.serve(0)
        return stream, trainer

    yield started
    for each in reversed(opened):
        each.close()
    for number, handler in former.items():
        signal.signal(number, handler)


def lines(run_name: str) -> list[dict[str, Any]]:
    """metrics.jsonl."""
    return [json.loads(x) for x in Path("runs", run_name, "metrics.jsonl").read_text().splitlines()]


def ended(stream: Stream) -> tuple[str, str]:
    state = stream.bus.state()
    return state.stop, state.reason


def test_a_run_is_done_after_its_steps(start: Start) -> None:
    stream, trainer = start(steps=2)
    for step in (1, 2):
        stream.plant(2)
        wait_until(lambda step=step: stream.bus.state().step == step, f"step {step}")
    assert trainer.join() == EXIT_DONE
    assert ended(stream) == ("done", "2 steps")
    assert stream.ledger() == {"generated": Sum(8, 32), "trained": Sum(8, 32)}
    assert stream.bus.state().version == 2


def test_where_the_data_ends_the_last_batch_is_short_and_not_stuck(start: Start) -> None:
    stream, trainer = start(steps=9)
    stream.plant(2)
    stream.plant(1, eof=True)
    assert trainer.join() == EXIT_DONE
    assert ended(stream) == ("done", "the data ended after 2 steps")
    assert [line["groups"] for line in lines(stream.run.name)] == [2, 1]


def test_data_that_gives_nothing_ends_the_run(start: Start) -> None:
    stream, trainer = start()
    stream.end_of_data()
    assert trainer.join() == EXIT_DONE
    assert ended(stream) == ("done", "the data ended after 0 steps")


def test_C065_data_without_any_signal_ends_the_run_and_the_reason_is_said(start: Start) -> None:
    stream, trainer = start()
    stream.plant(2, 1.0, 1.0)
    stream.plant(1, 0.0, 0.0, eof=True)
    assert trainer.join() == EXIT_DONE
    outcome, reason = ended(stream)
    assert outcome == "done" and reason.startswith("the data ended after 0 steps: no signal in the")
    assert stream.ledger()["zero_signal"] == Sum(6, 24) and stream.balance() == (0, 0)


def test_groups_without_signal_are_refused_at_once_and_their_places_are_free(
    start: Start,
) -> None:
    stream, _ = start()
    stream.plant(2, 1.0, 1.0)
    wait_until(lambda: stream.ledger().get("zero_signal") == Sum(4, 16), "refusal")
    assert stream.bus.snapshot().places.alive == 0
    assert (stream.bus.state().step, stream.balance()) == (0, (0, 0))


def test_a_group_that_came_too_late_is_refused_with_its_fate(start: Start) -> None:
    stream, _ = start(steps=9, lag=1, pace="refuse")
    stream.admit(4)
    first, late = stream.take(2), stream.take(2)
    stream.finish(first)
    stream.serve(1)
    stream.plant(2)
    wait_until(lambda: stream.bus.state().step == 2, "step 2")
    stream.version = 0
    stream.finish(late)
    wait_until(lambda: stream.ledger().get("stale") == Sum(4, 16), "refusal")
    assert (stream.bus.state().step, stream.balance()) == (2, (0, 0))


def test_a_step_that_would_leave_an_older_group_without_a_seat_waits_for_it(start: Start) -> None:
    stream, trainer = start(steps=3, lag=1)
    stream.admit(4)
    first, slow = stream.take(2), stream.take(2)
    stream.finish(first)
    stream.serve(1)
    stream.plant(2)
    wait_until(lambda: trainer.life.waiting_for == "older groups to be done", "hold")
    assert stream.bus.state().step == 1
    stream.version = 0
    stream.finish(slow)
    assert trainer.join() == EXIT_DONE
    assert stream.ledger()["trained"] == Sum(12, 48)
    assert [line["lag_max"] for line in lines(stream.run.name)] == [0, 1, 1]


def test_the_hold_is_bounded(start: Start) -> None:
    stream, _ = start(steps=9, lag=Lag(max=1, hold_seconds=0.2))
    stream.admit(4)
    first, slow = stream.take(2), stream.take(2)
    stream.finish(first)
    stream.serve(1)
    stream.plant(2)
    wait_until(lambda: stream.bus.state().step == 2, "step 2")
    stream.version = 0
    stream.finish(slow)
    wait_until(lambda: stream.ledger().get("stale") == Sum(4, 16), "refusal")


def test_what_a_scorer_could_not_grade_is_booked_once_and_the_rest_is_trained(
    start: Start,
) -> None:
    stream, trainer = start(steps=1)
    stream.plant(1, 1.0, Score(reward=None, error="timeout"))
    stream.plant(2)
    assert trainer.join() == EXIT_DONE
    ledger = stream.ledger()
    assert ledger["scorer_error"] == Sum(1, 4)
    assert ledger["zero_signal"] == Sum(1, 4), "one reward alone says nothing"
    assert (ledger["trained"], stream.balance()) == (Sum(4, 16), (0, 0))


def test_a_member_with_ids_that_the_model_does_not_know_is_booked_and_counted(
    start: Start,
) -> None:
    def strange(completion: Completion) -> Completion:
        if completion.member == 0:
            return completion
        return replace(completion, ids=struct.pack("<4i", 5, 6, 7, 1_000_000))

    stream, trainer = start(steps=1)
    stream.admit(2)
    stream.finish(stream.take(2), change=strange)
    assert trainer.join() == EXIT_DONE
    assert stream.ledger()["token_unknown"] == Sum(2, 8)
    assert (stream.ledger()["trained"], stream.balance()) == (Sum(2, 8), (0, 0))
    assert trainer.totals()['refused_members{reason="token_unknown"}'] == 2


def test_C101_a_step_that_is_not_finite_makes_no_version_and_is_counted(start: Start) -> None:
    losses_told.clear()
    stream, trainer = start(steps=2, objective=Objective(loss="planted:infinite_once"))
    stream.plant(2)
    wait_until(lambda: stream.bus.state().batch == 1, "batch 1")
    assert stream.bus.state().step == 0
    stream.plant(2)
    assert trainer.join() == EXIT_DONE
    state, ledger = stream.bus.state(), stream.ledger()
    assert (state.batch, state.step, state.version) == (2, 1, 1)
    assert ended(stream) == ("done", "1 step")
    assert (ledger["skipped"], ledger["trained"]) == (Sum(4, 16), Sum(4, 16))
    assert stream.balance() == (0, 0)
    totals = trainer.totals()
    assert (totals["skipped_steps"], totals["steps"], totals["members"]) == (1, 1, 4)
    assert totals['refused_members{reason="skipped"}'] == 4
    skipped, taken = lines(stream.run.name)
    assert (skipped["finite"], skipped["refused"]) == (False, {"skipped": 4})
    assert (taken["finite"], taken["refused"]) == (True, {})


def test_a_step_is_committed_before_its_version_is_announced(
    server_url: str, run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    seen: list[tuple[int, int, int]] = []
    monkeypatch.chdir(tmp_path)
    stream, trainer = start(steps=2)

    def announce(manifest: Manifest) -> None:
        state = stream.bus.state()
        seen.append((manifest.version, state.batch, state.step))
        stream.bus.versions.announce(manifest, min_version=0)

    transport = ShmTransport(folder=str(tmp_path), run=run_name)
    trainer.service.publisher = Publisher(announce, transport, epoch=trainer.service.epoch)
    stream.plant(2)
    stream.serve(1)
    stream.plant(2)
    assert trainer.join() == EXIT_DONE
    assert seen == [(1, 1, 1), (2, 2, 2)]


def test_a_sink_that_is_broken_costs_the_run_nothing(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    stream, trainer = start(steps=2, training=Keys(sinks=["planted:Broken"]))
    for _ in range(2):
        stream.plant(2)
    assert trainer.join() == EXIT_DONE
    assert [line["batch"] for line in lines(stream.run.name)] == [1, 2]
    assert trainer.totals()['sink_missed_lines{sink="other"}'] == 3
    assert caplog.text.count("OSError") == 1


def test_a_second_trainer_is_refused_and_the_first_goes_on(
    server_url: str, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, trainer = start(steps=1)
    bus, metrics = Bus.connect(server_url, stream.run.name), Metrics("training")
    life = Life(bus, "training", "training-1", metrics=metrics)

    def second() -> None:
        build(stream.run, bus, life=life, metrics=metrics)

    assert exit_code(second) == EXIT_FENCED
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("sluice: ")]
    assert "training-0" in line and "another name" in line
    assert stream.bus.state().epoch == 1
    stream.plant(2)
    assert trainer.join() == EXIT_DONE
    bus.close()


def test_of_two_trainers_that_start_at_once_one_leads(
    server_url: str, run_name: str, tmp_path: Path
) -> None:
    bus = Bus.connect(server_url, run_name)
    open_run(bus, made_run(run_name))
    outcomes: list[object] = []

    def lead(number: int) -> None:
        try:
            outcomes.append(claim(bus, tmp_path / str(number % 2), f"training-{number}:a").epoch)
        except Fenced:
            outcomes.append("fenced")

    with ThreadPoolExecutor(8) as together:
        [*together.map(lead, range(8))]
    led = [epoch for epoch in outcomes if epoch != "fenced"]
    assert bus.state().epoch == max(map(int, map(str, led))), "and that is the last one"
    assert len(set(led)) == len(led), "no epoch has two trainers"
    bus.purge()
    bus.close()


def test_weights_that_cannot_be_published_end_the_trainer_with_the_reason(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    stream, trainer = start(serve=False, weights={"use": "shm", "folder": nowhere})
    assert trainer.join() == EXIT_FAILED
    said = capsys.readouterr().err
    assert "version 0 cannot be written" in said and nowhere in said
    assert ended(stream) == ("", ""), "whoever mends it may go on"


def test_weights_that_a_server_has_lost_are_sent_anew(start: Start, server_url: str) -> None:
    """They travelled through it, and it was put back to before the last step."""
    stream, trainer = start(steps=2, weights="redis")
    stream.plant(2)
    stream.serve(1)
    prefix = f"sluice:{{{stream.run.name}}}:"
    with client_of(server_url) as client:
        client.unlink(*client.scan_iter(match=f"{prefix}weights:*"))
        client.hset(f"{prefix}state", "batch", 0)
        index = f"{prefix}weights:versions:index"
        wait_until(lambda: client.hget(index, "v1.e1") not in (None, b"partial"), "they are back")
    newest = stream.bus.versions.newest()
    assert newest is not None and newest.version == 1
    received = RedisTransport(run=stream.run.name, url=server_url).receive(newest)
    assert fingerprint(received) == newest.fingerprint
    stream.plant(2)
    assert trainer.join() == EXIT_DONE


def test_a_trainer_whose_run_was_ended_by_another_says_nothing(start: Start) -> None:
    stream, trainer = start()
    stream.bus.groups.finish(1, "failed", "no engine is left")
    assert trainer.join() == EXIT_DONE
    assert ended(stream) == ("failed", "no engine is left")


def test_C043_the_trainer_keeps_float32_and_sends_what_an_engine_loads(start: Start) -> None:
    stream, trainer = start(dtype="bfloat16")
    assert {tensor.dtype for _, tensor in trainer.service.team.weights()} == {torch.float32}
    first = stream.bus.versions.newest()
    assert first is not None and {entry.dtype for entry in first.tensors} == {"bfloat16"}
    engines = load_model(str(MODEL), dtype="bfloat16")
    assert first.fingerprint == fingerprint(named_parameters(engines))


def test_a_rate_of_1e_6_moves_the_weights_whatever_the_engines_dtype(start: Start) -> None:
    keys = Keys(learning_rate=1e-6, warmup_steps=0)
    stream, trainer = start(steps=1, dtype="bfloat16", training=keys)
    before = {name: tensor.clone() for name, tensor in trainer.service.team.weights()}
    stream.plant(2)
    assert trainer.join() == EXIT_DONE
    moved = [not torch.equal(before[n], t) for n, t in trainer.service.team.weights()]
    assert all(moved)

"""A trainer that follows another: what it reads from the disk, what it tells the bus, and what it
refuses. Deaths of real processes are in tests/e2e."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from planted import Lead, Stream, Trainer, feed, made_run, put_back, saved, wait_until

from pipeline.errors import ConfigError, SluiceError
from pipeline.ledger import Sum
from pipeline.messages import Beat
from pipeline.model.fingerprint import fingerprint
from pipeline.run import Lag, Objective, Run
from pipeline.run import Training as Keys
from pipeline.serve import EXIT_DONE, EXIT_FENCED
from pipeline.watch import newest
from services.training.checkpoints import Checkpoint, Checkpoints
from services.training.records import Records
from services.training.replay import replay


@pytest.fixture
def run(
    run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Run:
    """Its parameter is training.record, or objective.advantage."""
    monkeypatch.chdir(tmp_path)
    given = getattr(request, "param", "on")
    record = given if given in ("on", "off") else "on"
    objective = Objective() if given == record else Objective(advantage=given)
    keys = Keys(learning_rate=1e-4, checkpoint_every=2, record=record)
    weights = {"use": "shm", "folder": str(tmp_path)}
    return made_run(run_name, steps=9, weights=weights, training=keys, objective=objective)


def weights(trainer: Trainer) -> str:
    return fingerprint(trainer.service.team.weights())


def serve_first(stream: Stream) -> None:
    wait_until(lambda: stream.bus.state().version >= 0, "version")
    stream.serve(stream.bus.state().version)


def test_a_trainer_that_was_stopped_is_followed_by_one_with_the_same_weights(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    assert first.stop() == EXIT_DONE
    assert (stream.bus.state().stop, stream.bus.state().step) == ("", 3)
    second = lead()
    assert weights(second) == weights(first)
    assert (second.service.committed, second.service.optimizer_step) == (3, 3)
    assert second.service.version == 4, "a number that was never used, for the same weights"
    wait_until(lambda: stream.bus.state().version == 4, "version 4")
    feed(stream, 1)
    assert second.stop() == EXIT_DONE
    assert stream.ledger()["trained"] == Sum(16, 64) and stream.balance() == (0, 0)
    told: list[str] = []
    assert replay(run, say=told.append)
    assert told[-1] == "replayed 4 batches, 4 steps"


@pytest.mark.parametrize("run", ["ema"], indirect=True)
def test_what_an_advantage_remembers_is_in_the_checkpoint_and_moves_in_a_replay(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    for reward in (1.0, 0.25, 3.0):  # so that the mean moves with every batch
        feed(stream, 1, 0.1, reward)
    assert first.stop() == EXIT_DONE
    shutil.rmtree(max((run.folder / "checkpoints").glob("00000003.e*")))
    second = lead()  # the checkpoint of batch 2, and the record of batch 3
    assert weights(second) == weights(first)
    remembered = [one.service.pool.rules.advantage.memory() for one in (first, second)]
    assert remembered[0] == remembered[1] and remembered[0].plain["means"][""] != 0.55
    wait_until(lambda: stream.bus.state().version == 4, "version 4")
    feed(stream, 1, 0.1, 2.0)
    assert second.stop() == EXIT_DONE
    told: list[str] = []
    assert replay(run, say=told.append)
    assert sum("the same weights" in line for line in told) == 2


def test_training_on_after_a_stop_is_bit_for_bit_as_if_there_had_been_none(
    stream: Stream, lead: Lead, run: Run
) -> None:
    """The checkpoint holds the optimizer too: the replay has none of the stops in it."""
    for _ in range(3):
        trainer = lead()
        wait_until(lambda t=trainer: stream.bus.state().version == t.service.version, "version")
        feed(stream, 1)
        assert trainer.stop() == EXIT_DONE
    told: list[str] = []
    assert replay(run, say=told.append)
    assert [line for line in told if line.startswith("step 3: the same weights, bit for bit")]


def test_a_record_that_was_not_stepped_is_stepped_and_committed_by_the_next(
    stream: Stream, lead: Lead
) -> None:
    first = lead()
    serve_first(stream)
    first.service.optimizer = None  # it dies where the step would be
    stream.plant(2)
    assert first.join() is None and isinstance(first.error, AttributeError)
    first.life.end()
    assert stream.bus.state().batch == 0 and stream.bus.snapshot().places.groups == 2
    assert first.service.records.numbers() == [1], "recorded before it is made"
    second = lead()
    wait_until(lambda: stream.bus.state().step == 1, "step 1")
    assert second.service.records.numbers() == [1]
    assert stream.ledger()["trained"] == Sum(4, 16) and stream.balance() == (0, 0)


def test_a_second_trainer_waits_for_the_lease_of_one_that_died_without_a_word(
    stream: Stream, lead: Lead, run: Run
) -> None:
    boot = "training-9:x"
    beat = Beat(service="training", instance="training-9", boot=boot, waiting_for="groups")
    stream.bus.beat(beat)
    stream.bus.groups.lead(1, boot)
    shift = 1000 * run.bus.lease_seconds - 1000
    client, keys = stream.bus._client, stream.bus._keys
    client.zincrby(keys.prefix + "beat", -shift, boot)
    begun = time.monotonic()
    lead()
    assert 0.5 < time.monotonic() - begun < run.bus.lease_seconds
    assert stream.bus.state().epoch == 2


@pytest.mark.parametrize("run", ["on", "off"], indirect=True)
def test_a_server_that_was_put_back_is_told_what_it_lost(stream: Stream, lead: Lead) -> None:
    trainer = lead()
    serve_first(stream)
    feed(stream, 1)
    before = saved(stream.bus)
    feed(stream, 2)
    after = stream.ledger()
    put_back(stream.bus, before)
    wait_until(lambda: stream.bus.state().batch == 3, "telling")
    wait_until(lambda: stream.bus.state().version == 3, "announcing")
    assert stream.ledger() == after and stream.balance() == (0, 0)
    assert stream.bus.audit().faults == ()
    stream._held.clear()
    stream.admit(4)  # the cursor went back as well: what was trained is not admitted again
    assert stream.bus.snapshot().places.alive == 0
    feed(stream, 1)
    assert trainer.service.committed == 4


def test_a_run_goes_on_from_its_folder_on_a_server_that_knows_nothing(
    server_url: str, stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    ledger = stream.ledger()
    assert first.stop() == EXIT_DONE
    stream.bus.purge()
    anew = Stream(server_url, run)
    lead()
    wait_until(lambda: anew.bus.state().batch == 3, "commits")
    assert anew.ledger() == ledger and anew.balance() == (0, 0)
    assert (
        anew.bus.state().version >= 4
        or wait_until(lambda: anew.bus.state().version == 4, "a version that was never used")
        is None
    )
    anew.serve(anew.bus.state().version)
    anew.admit(6)
    assert anew.bus.snapshot().places.alive == 0, "six groups of the data were trained"
    feed(anew, 1)
    anew.bus.close()


def test_a_folder_without_the_runs_records_is_refused(stream: Stream, lead: Lead, run: Run) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 1)
    assert first.stop() == EXIT_DONE
    shutil.rmtree(run.folder)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no record of this run, which has 1 batches"):
            lead()
    assert stream.bus.state().batch == 1


def test_a_disk_that_lost_steps_goes_back_and_their_tokens_are_orphans(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    stream.serve(stream.bus.state().version)
    stream.admit(2)
    leases = stream.take(2)
    assert first.stop() == EXIT_DONE
    for path in (
        *(run.folder / "steps").glob("00000003*"),
        *(run.folder / "checkpoints").glob("*3.e*"),
    ):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    second = lead()
    assert (second.service.committed, second.service.optimizer_step) == (3, 2)
    assert stream.bus.state().step == 2
    lost = stream.version
    wait_until(lambda: stream.bus.state().version > lost, "a new version")
    stream.serve(stream.bus.state().version)
    stream.version = lost
    stream.finish(leases)
    wait_until(lambda: stream.ledger().get("orphan_version") == Sum(4, 16), "refusal")
    assert stream.balance() == (0, 0)


def die_in_the_next_step(stream: Stream, trainer: Trainer) -> None:
    """Recorded, and neither made nor committed; its last checkpoint is whole."""
    trainer.service.checkpoints.flush()
    trainer.service.optimizer = None
    stream.serve(stream.bus.state().version)
    stream.plant(2)
    assert trainer.join() is None and isinstance(trainer.error, AttributeError)
    trainer.life.end()


unrecorded = pytest.mark.parametrize("run", ["off"], indirect=True)


@unrecorded
@pytest.mark.parametrize(("made", "kept"), [(3, 2), (1, 0)])
def test_without_records_a_trainer_goes_back_to_the_newest_checkpoint_and_says_what_is_lost(
    stream: Stream, lead: Lead, run: Run, caplog: pytest.LogCaptureFixture, made: int, kept: int
) -> None:
    """There is none before batch 2: then to the first weights."""
    first = lead()
    serve_first(stream)
    start = weights(first)
    feed(stream, made)
    die_in_the_next_step(stream, first)
    second = lead()
    standing = second.service.standing
    assert (standing.batch, standing.step, stream.bus.state().step) == (made, kept, kept)
    assert f"training goes on from step {kept}, lost_steps=1 undone_members=4" in caplog.text
    assert kept or weights(second) == start
    wait_until(lambda: "orphan_version" in stream.ledger(), "what a version sampled that is lost")
    wait_until(lambda: stream.bus.state().version == second.service.version, "version")
    feed(stream, 1)
    trained = 4 * (kept + 1)
    ledger = {"trained": Sum(trained, 4 * trained), "undone": Sum(4, 16)}
    ledger["orphan_version"] = Sum(4, 16)
    assert {fate: stream.ledger()[fate] for fate in ledger} == ledger
    assert stream.balance() == (0, 0) and stream.bus.audit().faults == ()


@unrecorded
def test_what_was_lost_is_booked_once_however_often_a_trainer_begins(
    stream: Stream, lead: Lead, run: Run
) -> None:
    """Even if the first that follows dies before it has removed the records of what is lost."""
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    die_in_the_next_step(stream, first)
    before = {path: path.read_bytes() for path in (run.folder / "steps").iterdir()}
    for _ in range(2):
        for path, record in before.items():
            path.write_bytes(record)
        trainer = lead()
        wait_until(lambda t=trainer: stream.bus.state().version == t.service.version, "version")
        stream.serve(stream.bus.state().version)
        trainer.service.checkpoints.write = None  # so that it leaves nothing to go on from
        trainer.life.signal = "SIGTERM"
        assert trainer.join() is None
        trainer.life.end()
    assert stream.ledger()["undone"] == Sum(4, 16) and stream.balance() == (0, 0)


@unrecorded
def test_a_server_that_was_put_back_to_before_lost_steps_is_not_told_of_them(
    stream: Stream, lead: Lead
) -> None:
    """Their groups are as good as new: what they taught is in no weights."""
    first = lead()
    serve_first(stream)
    feed(stream, 2)
    before = saved(stream.bus)
    feed(stream, 1)
    die_in_the_next_step(stream, first)
    second = lead()
    wait_until(lambda: "orphan_version" in stream.ledger(), "refusal")
    wait_until(lambda: stream.bus.state().version == second.service.version, "version")
    feed(stream, 1)
    put_back(stream.bus, before)
    wait_until(lambda: stream.bus.state().batch == 4, "telling")
    assert stream.bus.state().step == second.service.optimizer_step == 3
    ledger = stream.ledger()
    assert (ledger["trained"], stream.balance()) == (Sum(12, 48), (0, 0))
    assert "skipped" not in ledger


@unrecorded
def test_a_record_without_groups_is_small_and_cannot_be_replayed(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 2)
    assert first.stop() == EXIT_DONE
    records = Records(run.folder)
    assert [records.read(n).groups for n in records.numbers()] == [(), ()]
    assert records.read(1).fates["g0"] == {"trained": Sum(2, 8)}
    assert all(path.stat().st_size < 250 for path in records.folder.iterdir())
    with pytest.raises(ConfigError, match=r"steps, batch 1: its groups were not recorded"):
        replay(run)


def test_a_record_that_cannot_be_read_is_named(stream: Stream, lead: Lead, run: Run) -> None:
    first = lead()
    serve_first(stream)
    first.service.optimizer = None
    stream.plant(2)
    assert first.join() is None
    first.life.end()
    plan, cargo = sorted((run.folder / "steps").iterdir())
    whole = {path: path.read_bytes() for path in (plan, cargo)}
    for path, wrong in ((cargo, whole[cargo][:-1]), (plan, b"nothing"), (plan, whole[plan][:-1])):
        path.write_bytes(wrong)
        with pytest.raises(SluiceError, match=path.name):
            lead()
        path.write_bytes(whole[path])
    for path, raw in whole.items():
        for at in (len(raw) // 3, 2 * len(raw) // 3):  # some would be tokens, or rewards
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            with pytest.raises(SluiceError, match=rf"{path.name} is damaged"):
                lead()
        path.write_bytes(raw)
    cargo.unlink()
    with pytest.raises(SluiceError, match=rf"{cargo.name} cannot be read"):
        lead()
    cargo.write_bytes(whole[cargo])
    lead()
    wait_until(lambda: stream.bus.state().step == 1, "step 1")


def test_a_checkpoint_whose_weights_are_damaged_is_named(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 2)
    assert first.stop() == EXIT_DONE
    for mark in run.folder.glob("checkpoints/*/checkpoint.json"):
        mark.write_text(mark.read_text().replace('"fingerprint":"', '"fingerprint":"0'))
    with pytest.raises(SluiceError, match="is damaged"):
        lead()


def test_a_checkpoint_with_garbage_among_its_moments_is_named(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 2)
    assert first.stop() == EXIT_DONE
    (file,) = run.folder.glob("checkpoints/*/state/*.safetensors")
    written = bytearray(file.read_bytes())
    written[-100] ^= 1
    file.write_bytes(written)
    with pytest.raises(SluiceError, match=f"is damaged: state/{file.name} has the digest"):
        lead()


def test_a_checkpoint_that_was_not_finished_is_none(stream: Stream, lead: Lead, run: Run) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    assert first.stop() == EXIT_DONE
    newest = sorted((run.folder / "checkpoints").iterdir())[-1]
    newest.rename(newest.with_name(newest.name + ".partial"))
    assert weights(lead()) == weights(first), "by the one before, and the records since"


def test_a_trainer_that_was_replaced_steps_no_more(stream: Stream, lead: Lead, run: Run) -> None:
    first = lead()
    serve_first(stream)
    (run.folder / "epochs" / "7").mkdir()
    stream.plant(2)
    assert first.join() == EXIT_FENCED
    assert Records(run.folder).numbers() == [] and stream.bus.state().batch == 0


@pytest.mark.parametrize("lost", [(1,), (1, 2), (2,)])
def test_a_server_that_was_put_back_behind_records_that_are_lost_is_told_their_number(
    server_url: str, stream: Stream, lead: Lead, run: Run, lost: tuple[int, ...]
) -> None:
    """Their groups are not known any more, and may be trained once more; the run goes on."""
    first = lead()
    serve_first(stream)
    feed(stream, 3)
    assert first.stop() == EXIT_DONE
    for number in lost:
        (run.folder / "steps" / f"{number:08d}.e1").unlink()
    stream.bus.purge()
    anew = Stream(server_url, run)
    second = lead()
    wait_until(lambda: anew.bus.state().batch == 3, "commits")
    assert anew.bus.state().step == second.service.optimizer_step == 3
    wait_until(lambda: anew.bus.state().version == second.service.version, "version")
    anew.serve(anew.bus.state().version)
    anew.admit(6)
    assert anew.bus.snapshot().places.alive == 2 * len(lost)
    anew.finish(anew.take(2))
    wait_until(lambda: anew.bus.state().step == 4, "step 4")
    anew.bus.close()


def test_a_group_is_waited_for_once(stream: Stream, lead: Lead) -> None:
    trainer = lead()
    trainer.service.settings = replace(trainer.service.settings, lag=Lag(max=1, hold_seconds=0.3))
    serve_first(stream)
    stream.admit(4)
    first, slow = stream.take(2), stream.take(2)
    assert slow
    stream.finish(first)
    wait_until(lambda: stream.bus.state().step == 1, "step 1")
    wait_until(lambda: stream.bus.versions.newest().step == 1, "version 1")
    begun = time.monotonic()
    feed(stream, 4)
    assert trainer.service.given_up == 0, "the start step of the slow ones"
    assert stream.bus.state().step == 5 and time.monotonic() - begun < 20
    assert trainer.service.held_since is None


class Empty:
    """A snapshot of nothing."""

    def fingerprint(self) -> str:
        return "f"

    def write(self, folder: str) -> None:
        """There is nothing in it."""


def test_of_one_batch_the_checkpoint_of_the_highest_epoch_counts(tmp_path: Path) -> None:
    made = Checkpoint(batch=7, step=7, version=7, backend="torch", ranks=1, threads=1)
    checkpoints = Checkpoints(tmp_path, Empty)
    for epoch in (9, 10, 11):
        checkpoints.write(made, epoch=epoch)
    checkpoints.flush()
    newest = checkpoints.newest()
    assert newest is not None and newest[0].name == "00000007.e11"


def test_a_trainer_that_follows_tells_the_rewards_of_every_step(
    stream: Stream, lead: Lead, run: Run
) -> None:
    first = lead()
    serve_first(stream)
    feed(stream, 2)
    assert first.stop() == EXIT_DONE
    second = lead()
    wait_until(lambda: stream.bus.state().version == 3, "version 3")
    feed(stream, 1)
    assert second.stop() == EXIT_DONE
    (beat,) = [seen.beat for seen in newest(stream.bus.snapshot().beats) if seen.beat.curves]
    assert beat.curves["reward"] == ((1, 0.5), (2, 0.5), (3, 0.5))
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["generated_tokens"] for line in lines] == [16, 32, 48]

"""A checkpoint is copied at once and written beside the run: whole or not at all, never late."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.digests import verify
from pipeline.errors import SluiceError
from pipeline.metrics import Metrics
from services.training.checkpoints import Checkpoint, Checkpoints, found
from services.training.metrics import PARTS, Numbers
from services.training.remembered import Memory

Act = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """Does nothing to a folder that is being written."""


def die(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Written:
    """A snapshot of two files, between which something happens, and after them."""

    def __init__(self, between: Act = nothing, after: Act = nothing) -> None:
        self._between, self._after = between, after
        self._folder = Path()

    def write(self, folder: str) -> None:
        self._folder = Path(folder)
        for number, act in enumerate((self._between, nothing)):
            part = self._folder / f"part{number}"
            part.mkdir()
            (part / "file").write_bytes(bytes([number]) * 100)
            act(self._folder)

    def fingerprint(self) -> str:
        self._after(self._folder)
        return "print"


def mark(batch: int, version: int | None = None) -> Checkpoint:
    version = batch if version is None else version
    return Checkpoint(batch=batch, step=batch, version=version, backend="torch", ranks=1, threads=1)


def made(folder: Path, *snapshots: Written, kept: int = 2) -> Checkpoints:
    """One of each, of batches 1, 2, ..."""
    given = iter(snapshots)
    checkpoints = Checkpoints(folder, lambda: next(given), kept=kept)
    for batch, _ in enumerate(snapshots, start=1):
        checkpoints.write(mark(batch), epoch=1)
    checkpoints.flush()
    return checkpoints


def names(folder: Path) -> list[int]:
    return [one.batch for one in found(folder)]


@pytest.mark.parametrize("where", ["between", "after"])
def test_killed_while_one_is_written_the_one_before_counts(tmp_path: Path, where: str) -> None:
    """By kill -9 between two files, and when all but the mark is there."""
    if not (child := os.fork()):
        made(tmp_path, Written(), Written(**{where: die}))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    newest = Checkpoints(tmp_path, Written).newest()
    assert newest is not None and newest[1].batch == 1
    verify(newest[0], newest[1].files)
    assert [path.name for path in (tmp_path / "checkpoints").glob(".*.partial")], "it had begun"
    again = Checkpoints(tmp_path, Written)
    again.write(mark(2), epoch=2)
    again.flush()
    assert names(tmp_path) == [1, 2] and not [*(tmp_path / "checkpoints").glob(".*")]


def test_training_goes_on_while_one_is_written_and_the_next_waits_for_it(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pause(folder: Path) -> None:
        begun.set()
        assert go_on.wait(20)

    copies: list[int] = []

    def take() -> Written:
        copies.append(len(names(tmp_path)))
        return Written(between=pause)

    numbers = Numbers(metrics := Metrics("training"))
    checkpoints = Checkpoints(tmp_path, take, told=numbers.checkpointed)
    checkpoints.write(mark(1), epoch=1)
    assert begun.wait(20) and names(tmp_path) == [], "it has returned before anything was whole"
    threading.Timer(0.05, go_on.set).start()
    checkpoints.write(mark(2), epoch=1)
    checkpoints.flush()
    assert copies == [0, 1], "the second was copied when the first was whole"
    assert names(tmp_path) == [1, 2]
    spent = {part: metrics.gauges()[f'checkpoint_seconds{{part="{part}"}}'] for part in PARTS}
    assert spent["waited"] > 0.04 > spent["copied"] > 0 and spent["written"] > 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("broken")])
def test_one_that_cannot_be_written_is_told_once_and_leaves_the_former(
    tmp_path: Path, error: Exception
) -> None:
    def fail(folder: Path) -> None:
        raise error

    with pytest.raises((SluiceError, RuntimeError), match=r"No space left|broken"):
        made(tmp_path, Written(), Written(between=fail))
    assert names(tmp_path) == [1]
    checkpoints = Checkpoints(tmp_path, lambda: Written(between=fail))
    checkpoints.write(mark(3), epoch=1)
    assert checkpoints._writing is not None
    checkpoints._writing.join()
    with pytest.raises((SluiceError, RuntimeError)):
        checkpoints.check()
    checkpoints.check()


def test_the_newest_are_kept_and_the_best_and_what_waits_for_its_score(tmp_path: Path) -> None:
    scores: dict[int, float] = {}
    given = Checkpoints(tmp_path, Written, kept=2, scores=lambda: scores)
    given.awaited = frozenset({3})
    for batch in range(1, 9):
        given.write(mark(batch), epoch=1)
        given.flush()
        if batch == 2:
            scores |= {2: 0.7, 1: 0.4}
    assert names(tmp_path) == [2, 3, 7, 8]
    scores |= {3: 0.6, 8: 0.9}
    given = Checkpoints(tmp_path, Written, kept=1, scores=lambda: scores)
    given.write(mark(9), epoch=1)
    given.flush()
    assert names(tmp_path) == [8, 9]


def test_a_file_that_was_damaged_is_named(tmp_path: Path) -> None:
    newest = made(tmp_path, Written()).newest()
    assert newest is not None
    path, written = newest
    verify(path, written.files)
    (path / "part1" / "file").write_bytes(bytes(100))
    with pytest.raises(SluiceError, match=r"is damaged: part1/file has the digest \w+, and was"):
        verify(path, written.files)
    (path / "part0" / "file").unlink()
    with pytest.raises(SluiceError, match="is damaged: part0/file is gone"):
        verify(path, written.files)


class Mean:
    """Remembers numbers."""

    def __init__(self) -> None:
        self.had = Memory({"count": 0}, {})

    def memory(self) -> Memory:
        return self.had

    def recall(self, memory: Memory) -> None:
        self.had = memory


def test_what_else_a_step_depends_on_is_in_the_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    mean, other = Mean(), Mean()
    mean.had = Memory({"count": 3, "mean": 0.1 + 0.2}, {"a": torch.tensor([0.1, float("nan")])})
    checkpoints = Checkpoints(tmp_path, Written, others={"mean": mean})
    checkpoints.write(mark(1), epoch=1)
    checkpoints.flush()
    newest = checkpoints.newest()
    assert newest is not None and "others/mean.safetensors" in newest[1].files
    Checkpoints(tmp_path, Written, others={"mean": other}).recall(newest[0])
    assert other.had.plain == mean.had.plain
    bits = (one.had.tensors["a"].view(torch.int32) for one in (other, mean))
    assert torch.equal(*bits)
    missing = Checkpoints(tmp_path, Written, others={"reference": other})
    with pytest.raises(SluiceError, match=re.escape("this run needs what reference was")):
        missing.recall(newest[0])

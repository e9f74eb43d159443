"""What is written is whole or not there, also under a kill and beside other writers."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Barrier, Thread

import pytest

from pipeline.disk import free_bytes, new_file, new_folder, write
from pipeline.metrics import Metrics
from services.training.metrics import Numbers

fork = multiprocessing.get_context("fork")
New = Callable[[Path], AbstractContextManager[Path]]
both = pytest.mark.parametrize("new", [new_file, new_folder])


def fill(place: Path, data: bytes) -> None:
    """A file, or a file in the folder."""
    (place / "data" if place.is_dir() else place).write_bytes(data)


def read(place: Path) -> bytes:
    return (place / "data" if place.is_dir() else place).read_bytes()


def killed_while_writing(new: New, path: Path) -> None:
    def act() -> None:
        with new(path) as partial:
            fill(partial, b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    child = fork.Process(target=act)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


@both
def test_a_writer_that_is_killed_leaves_nothing_of_that_name_and_is_cleaned_up_after(
    tmp_path: Path, new: New
) -> None:
    killed_while_writing(new, tmp_path / "one")
    [left] = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    with new(tmp_path / "other") as partial:
        fill(partial, b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@both
def test_a_block_that_fails_leaves_nothing(tmp_path: Path, new: New) -> None:
    with pytest.raises(ZeroDivisionError), new(tmp_path / "one") as partial:
        fill(partial, b"half")
        raise ZeroDivisionError
    assert not [*tmp_path.iterdir()]


@both
def test_writers_of_one_thing_leave_each_other_alone(tmp_path: Path, new: New) -> None:
    """The second begins and ends while the first is at it; the first is whole, or is refused."""
    first = new(tmp_path / "one")
    partial = first.__enter__()
    fill(partial, b"the first")
    with new(tmp_path / "one") as second:
        assert second != partial
        fill(second, b"the second")
    assert read(tmp_path / "one") == b"the second" and read(partial) == b"the first"
    if new is new_file:
        first.__exit__(None, None, None)
        assert read(tmp_path / "one") == b"the first"
    else:
        with pytest.raises(OSError, match="not empty"):
            first.__exit__(None, None, None)
        assert read(tmp_path / "one") == b"the second"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_many_at_once_sweep_none_that_lives(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    together = Barrier(8)

    def act(number: int) -> None:
        together.wait()
        try:
            for turn in range(20):
                write(tmp_path / "shared", bytes([number]) * 1000)
                write(tmp_path / f"{number}.{turn}", b"x")
        except BaseException as exc:
            failed.append(exc)

    threads = [Thread(target=act, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(set((tmp_path / "shared").read_bytes())) == 1
    assert len([*tmp_path.iterdir()]) == 8 * 20 + 1


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_a_folder_is_as_readable_as_any_other_of_its_user(tmp_path: Path, umask: int) -> None:
    """Whatever a library made of the files in it."""
    with new_folder(tmp_path / "deep" / "one") as partial:
        (partial / "sub").mkdir()
        for path in (partial / "data", partial / "sub" / "data"):
            path.touch(0o600)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("deep/one/**/*")}
    assert modes == {"data": 0o640, "sub": 0o750}
    assert (tmp_path / "deep" / "one").stat().st_mode & 0o777 == 0o750


def test_what_others_call_partial_is_not_ours(tmp_path: Path) -> None:
    others = [".one.another-host.0123abcd.partial", "one.partial", ".one.partial", ".0123abcd"]
    for name in others:
        (tmp_path / name).mkdir()
    write(tmp_path / "one", b"")
    assert {path.name for path in tmp_path.iterdir()} == {"one", *others}


def test_what_is_left_where_a_folder_will_be_is_what_is_left_around_it(tmp_path: Path) -> None:
    here = shutil.disk_usage(tmp_path).free
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(here, rel=0.05)


def test_a_trainer_tells_what_is_left_once_it_knows_its_folder(tmp_path: Path) -> None:
    metrics = Metrics("training")
    numbers = Numbers(metrics)
    assert math.isnan(metrics.gauges()["disk_free_bytes"])
    numbers.folder = tmp_path
    assert metrics.gauges()["disk_free_bytes"] > 0

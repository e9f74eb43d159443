"""Sinks get the lines of metrics.jsonl as they are, and can do nothing to the run."""

from __future__ import annotations

import importlib
import json
import logging
import math
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from services.training.journal import Journal
from services.training.sinks.feeds import MOST_WAITING, Feed, Feeds, feeds
from services.training.sinks.scalars import scalars

ROOT = Path(__file__).resolve().parents[2]
LINE = {"batch": 1, "reward": 0.5, "finite": True, "refused": {"stale": 3}}


class Notes:
    """A sink that remembers; it may raise for a batch, or wait to be let go."""

    def __init__(self, *, fails: int = 0, waits: threading.Event | None = None) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.fails, self.waits, self.closed = fails, waits, False

    def write(self, line: Mapping[str, Any]) -> None:
        if self.waits:
            self.waits.wait(20)
        if line["batch"] == self.fails:
            raise OSError("the network is down")
        self.lines.append(line)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def missed() -> list[str]:
    return []


def journal(folder: Path, sink: Notes, missed: list[str]) -> Journal:
    return Journal(folder, str, feeds=Feeds([Feed("notes", sink, missed.append)]))


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbered(batch: int, **more: Any) -> dict[str, Any]:
    return LINE | {"batch": batch, "step": batch} | more


def test_a_sink_gets_the_very_lines_that_are_written(tmp_path: Path, missed: list[str]) -> None:
    sink = Notes()
    book = journal(tmp_path, sink, missed)
    for batch in (1, 2, 3):
        book.write(numbered(batch, grad_norm=math.nan))
    book.close()
    assert sink.lines == written(tmp_path) and len(sink.lines) == 3
    assert sink.lines[0]["grad_norm"] is None
    assert (sink.closed, missed) == (True, [])


def test_a_sink_begins_with_what_former_processes_wrote(tmp_path: Path, missed: list[str]) -> None:
    first = journal(tmp_path, Notes(), missed)
    first.write(numbered(1)), first.write(numbered(2))
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"batch": 3, "cut sho')
    sink = Notes()
    book = journal(tmp_path, sink, missed)
    book.write(numbered(3))
    book.close()
    assert [line["batch"] for line in sink.lines] == [1, 2, 3]
    assert sink.lines == written(tmp_path)


def test_a_line_that_a_sink_does_not_take_is_counted_and_the_first_one_told_of(
    tmp_path: Path, missed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sink = Notes(fails=2)
    book = journal(tmp_path, sink, missed)
    for batch in (1, 2, 2, 3):
        book.write(numbered(batch))
    book.close()
    assert [line["batch"] for line in sink.lines] == [1, 3]
    assert [line["batch"] for line in written(tmp_path)] == [1, 2, 2, 3]
    assert missed == ["notes", "notes"]
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "sink=notes" in told and "OSError: the network is down" in told


def test_a_sink_that_hangs_holds_nobody_up(
    tmp_path: Path, missed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    sink = Notes(waits=let_go)
    feed = Feed("notes", sink, missed.append)
    feed.start([])
    for batch in range(MOST_WAITING + 12):
        feed.write(numbered(batch))
    assert len(missed) in (11, 12), "the line that it hangs with does not wait any more"
    before = len(missed)
    feed.close(0.05)
    assert len(missed) == before + 2, "the word of the end, and that it did not heed it"
    assert "1000 lines wait for it" in caplog.text and caplog.text.count("misses lines") == 1
    let_go.set()


def test_only_numbers_are_charted() -> None:
    line = {"a": 1, "b": 0.5, "c": None, "d": "word", "e": [1, 2], "f": {"g": 2, "h": None}}
    assert scalars(line) == {"a": 1.0, "b": 0.5, "f/g": 2.0}


def test_tensorboard_shows_each_batch_once_also_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra `tensorboard` is not installed",
    )
    missed: list[str] = []
    for batches in ((1, 2, 3), (4, 5)):  # the second process goes on
        sinks = feeds(["tensorboard"], tmp_path, failed=missed.append)
        book = Journal(tmp_path, str, feeds=sinks)
        for batch in batches:
            book.write(numbered(batch, reward=batch / 10))
        book.close()
    shown = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(e.step, round(e.value, 3)) for e in shown.Scalars("reward")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5)]
    assert [e.value for e in shown.Scalars("refused/stale")] == [3.0] * 5
    assert [e.wall_time for e in shown.Scalars("reward")] == [x["time"] for x in written(tmp_path)]
    assert missed == []


def test_wandb_goes_on_under_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    missed: list[str] = []
    for batches in ((1, 2, 3), (4, 5)):
        spec = {"use": "wandb", "project": "tried"}
        book = Journal(tmp_path, str, feeds=feeds([spec], tmp_path, failed=missed.append))
        for batch in batches:
            book.write(numbered(batch))
        book.close()
    stored = sorted((tmp_path / "wandb").glob("offline-run-*"))
    name = (tmp_path / "wandb-id").read_text()
    assert missed == [] and len(stored) == 2
    assert all(folder.name.endswith(name) for folder in stored)
    assert [_batches(folder) for folder in stored] == [[1, 2, 3], [1, 2, 3, 4, 5]]


def _batches(folder: Path) -> list[int]:
    """What was stored to be sent later: a log of LevelDB's format, here of one block."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    [path] = folder.glob("run-*.wandb")
    stored, found = path.read_bytes()[7:], []
    assert len(stored) < 1 << 15
    while stored:  # checksum, length, kind; then a record
        (length,) = struct.unpack_from("<H", stored, 4)
        record = records.Record()
        record.ParseFromString(stored[7 : 7 + length])
        stored = stored[7 + length :]
        if record.HasField("history"):
            items = {(i.key or i.nested_key[0]): i.value_json for i in record.history.item}
            found.append(int(float(items["step"])))
    return found


PROGRAM = """
import sys
sys.modules[{package!r}] = None
from pathlib import Path
from services.training.sinks.feeds import feeds
feeds([{name!r}], Path("."), failed=print)
"""


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_names_its_extra(name: str) -> None:
    program = PROGRAM.format(package=name, name=name)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert f"training.sinks[0] = '{name}'" in last
    assert last.endswith(f"pip install 'sluice-rl[{name}]'")


def test_an_option_that_a_sink_does_not_have_is_refused(tmp_path: Path) -> None:
    spec = {"use": "test_sinks:taker", "colour": "red"}
    with pytest.raises(ConfigError, match=r"training.sinks\[1\].colour = 'red': no such option"):
        feeds(["test_sinks:taker", spec], tmp_path, failed=print)


def taker(*, folder: Path) -> Notes:
    """A sink of the user's own."""
    return Notes()

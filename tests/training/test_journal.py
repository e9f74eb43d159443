"""What a trainer that goes on makes of the metrics.jsonl that it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from services.training.journal import Journal

LINE = b'{"batch": 1, "step": 1, "seconds": 5.0, "reward": 0.5}\n'


def save_nothing(folder: str) -> None:
    """No version is kept here."""


def test_a_line_that_was_cut_is_dropped_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINE + b'{"batch": 2, "st' + bytes(400))
    journal = Journal(tmp_path, save_nothing)
    assert (journal.last_batch, [*journal.lines()]) == (1, [json.loads(LINE)])
    journal.close()
    assert path.read_bytes() == LINE


@pytest.mark.parametrize("file", ["metrics.jsonl", "weights/kept.jsonl"])
@pytest.mark.parametrize("broken", [b"broken\n", b"[1]\n", bytes(100) + b"\n", b"\n", b"\xff\n"])
def test_a_line_that_is_broken_is_named(tmp_path: Path, file: str, broken: bytes) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(LINE + broken + LINE)
    with pytest.raises(ConfigError, match=f"{path}, line 2: is no object of JSON") as raised:
        Journal(tmp_path, save_nothing)
    assert "remove that line" in str(raised.value)
    assert path.read_bytes() == LINE + broken + LINE

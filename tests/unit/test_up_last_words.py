"""What is quoted of a dead child's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.up.placement import Process
from services.up.spawn import Spawner
from services.up.supervisor import Child


def last_words(log: Path) -> str:
    place = Process(service="scoring", instance="scoring-0", argv=(), environment={}, log=log)
    return Child(place, Spawner()).last_words()


@pytest.mark.parametrize(
    "line", ["RuntimeError: on fire", "redis.exceptions.TimeoutError: late", "KeyboardInterrupt"]
)
def test_a_tracebacks_last_line_is_quoted(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"Traceback\n{line}\n")
    assert last_words(log) == f": {line}"


def test_our_own_line_is_quoted_without_our_name(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("sluice: lag.max = -1: wrong\n")
    assert last_words(log) == ": lag.max = -1: wrong"


@pytest.mark.parametrize("line", ["2025-01-01 10:00:00,123 INFO x: y", "INFO: z", "at work", ""])
def test_what_is_no_cause_is_not_quoted(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    assert last_words(log) == f"; see {log}"

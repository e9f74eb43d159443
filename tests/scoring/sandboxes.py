"""What tests of the scorer `code` share: one that has a sandbox, and what it is asked."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.metrics import Metrics
from pipeline.protocols import Answer
from services.scoring.metrics import Numbers
from services.scoring.scorers.code.scorer import Code

MISSING = ("no bwrap on PATH", "no sandbox can be made")


def code_or_skip(**options: Any) -> Code:
    """Where none can be made the tests fail in CI, and elsewhere are skipped with the reason."""
    try:
        return Code(**options)
    except ConfigError as exc:
        if os.environ.get("CI") or not any(reason in str(exc) for reason in MISSING):
            raise
        pytest.skip(str(exc))


def numbers() -> Numbers:
    """Metrics that nobody reads."""
    return Numbers(Metrics("scoring"))


def answer(program: str, reference: Any) -> Answer:
    """A text that ends with the program."""
    return Answer(
        text=f"So:\n````python\n{program}\n````\n", prompt="", reference=reference, finish="stop"
    )

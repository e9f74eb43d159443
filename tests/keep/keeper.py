"""A command of the keeper, and how it says that its input is at fault."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

Sluice = Callable[..., Result]


def refusal(done: Result) -> str:
    """The one line that bad input ends with."""
    assert done.exit_code == 2, (done.output, done.exception)
    assert done.stdout == ""
    assert done.stderr.startswith("sluice: ") and done.stderr.count("\n") == 1
    return done.stderr.removeprefix("sluice: ").rstrip("\n")

"""The scorer `code`: whether a program passes the tests of its task, each in a sandbox.

The sandbox is in `sandbox`, what runs in it in `inside`, and how one ends in `box`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta

from pipeline.protocols import Answer, Verdict
from pipeline.verdicts import Passing
from services.scoring.scorers.code.answer import program_in
from services.scoring.scorers.code.box import watch
from services.scoring.scorers.code.limits import Limits
from services.scoring.scorers.code.probe import check_sandbox
from services.scoring.scorers.code.reference import Checks, Reference, Runs, read_reference
from services.scoring.scorers.code.sandbox import BrokenSandbox, Sandbox
from services.scoring.scorers.code.why import why_of_run, whys_of_checks
from services.scoring.scorers.reasons import NoAnswer, Why

OVER_SECONDS = 2.0
"""What a program may cost besides its own time: sandboxes that begin and end."""
LAST_SECONDS = 0.5
"""For a program that has hung up on its checker to say how it ends."""

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class Code:
    """1 where the last fenced program of the text passes all tests of its reference, else 0.

    A test may take `test_seconds`, all of them `all_seconds`, each with its sandbox; a program has
    `memory_bytes` and as many `processes`, threads among them. `partial`: the reward is the share
    of the tests that are passed, and the outcome still 1 for all of them alone.
    """

    version = "1"

    def __init__(
        self,
        *,
        test_seconds: Seconds = 4.0,
        all_seconds: Seconds = 8.0,
        memory_bytes: Annotated[int, Meta(ge=64 * 2**20)] = 512 * 2**20,
        processes: Annotated[int, Meta(ge=1, le=1024)] = 32,
        partial: bool = False,
    ) -> None:
        """Raises ConfigError without a sandbox that holds."""
        self.needs_seconds = all_seconds + OVER_SECONDS
        limits = Limits(min(test_seconds, all_seconds), all_seconds, memory_bytes, processes)
        self._sandbox, self._limits, self._partial = Sandbox(limits), limits, partial
        check_sandbox(self._sandbox)

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError for a reference that is none, and Passing where no sandbox starts."""
        reference = read_reference(answer.reference)
        try:
            program = program_in(answer.text, prompt=answer.prompt)
        except NoAnswer as nothing:
            return Verdict(reward=0.0, reason=nothing.why)
        try:
            graded = self.grade(program, reference)
        except BrokenSandbox as exc:
            raise Passing(f"no sandbox: {exc}") from exc
        outcome = float(graded.why is Why.RIGHT)
        return Verdict(
            reward=graded.passed if self._partial else outcome, outcome=outcome, reason=graded.why
        )

    def grade(self, program: str, reference: Reference) -> Graded:
        """Raises BrokenSandbox."""
        text = program.encode("utf-8", "surrogatepass")
        until = time.monotonic() + self._limits.all_seconds
        if isinstance(reference, Checks):
            return _graded(self._checked(text, reference, until), len(reference.sources))
        return _graded(self._run(text, reference, until), len(reference.tests))

    def _run(self, text: bytes, runs: Runs, until: float) -> Iterator[Why]:
        """Of each test; none follows one that fails, where nobody asks for the share."""
        for run in runs.tests:
            if time.monotonic() >= until:
                yield Why.TIMEOUT
                return
            box = self._sandbox.start("run", text, stdin=run.stdin.encode("utf-8", "surrogatepass"))
            try:
                watch([box], self._limits, until=until)
            finally:
                ended = box.end()
            why = why_of_run(ended, run)
            yield why
            if why is not Why.RIGHT and not self._partial:
                return

    def _checked(self, text: bytes, checks: Checks, until: float) -> Iterator[Why]:
        """Of each check. The program is in one sandbox, and they are in another."""
        task = {"checks": checks.sources, "entry": checks.entry}
        mine, theirs = socket.socketpair()
        with mine, theirs:
            program = self._sandbox.start("serve", text, link=theirs)
            try:
                checker = self._sandbox.start("check", json.dumps(task).encode(), link=mine)
            except BrokenSandbox:
                program.end()
                raise
            mine.close()
            theirs.close()
            try:
                watch([checker, program], self._limits, until=until, paced=True)
            finally:
                told = checker.end()
                ended = program.end(wait=LAST_SECONDS if b"lost" in told.out else 0.0)
        yield from whys_of_checks(told, ended, len(checks.sources))


class Graded(NamedTuple):
    """The share of the tests that are passed, and why not all of them are."""

    passed: float
    why: Why


def _graded(whys: Iterator[Why], number: int) -> Graded:
    found = [*whys]
    failed = [why for why in found if why is not Why.RIGHT]
    return Graded(found.count(Why.RIGHT) / number, failed[0] if failed else Why.RIGHT)

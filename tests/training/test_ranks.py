"""One rank that is gone ends the others, soon and by name. Real processes, without torchrun's help.

torchrun kills a job of which one process has died; on several machines, or with one that hangs,
that is of no use.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace
from rank_cases import settings
from rank_forks import Rank, forked
from rank_of_a_job import become

from pipeline.errors import ConfigError
from pipeline.run import Training
from services.training.ranks import check

pytestmark = pytest.mark.timeout(300)

FOR_EVER = 1000


@contextmanager
def job(size: int, loss: str, pause_seconds: float) -> Iterator[list[Rank]]:
    """So many ranks, killed at the end."""
    with TemporaryDirectory() as folder:
        ranks = forked(size, Path(folder), become, loss, pause_seconds)
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()


def last_words(rank: Rank) -> str:
    """Of a process that ends by itself within two leases and a bit."""
    code = rank.end(25)
    said = rank.output.read_text()
    assert code == 1, said
    return [line for line in said.splitlines() if line.startswith("sluice: ")][-1]


def test_ranks_of_a_back_end_that_is_one_process_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = settings(pack_tokens=99)
    monkeypatch.setenv("WORLD_SIZE", "2")
    check(run)
    with pytest.raises(ConfigError, match=r"training.backend = 'torch': is one process, .* of 2;"):
        check(replace(run, training=Training()))


def test_a_rank_that_is_killed_in_a_step_is_named_by_all_others() -> None:
    with job(3, "cispo", 0) as ranks:
        ranks[0].await_line("step")
        ranks[2].kill()
        for other in ranks[:2]:
            assert last_words(other).startswith("sluice: rank 2 is gone: it died or hangs")


def test_a_rank_that_hangs_while_rank_0_waits_for_groups_is_named() -> None:
    with job(2, "cispo", FOR_EVER) as ranks:
        ranks[0].await_line("step")
        os.kill(ranks[1].pid, signal.SIGSTOP)
        assert last_words(ranks[0]).startswith("sluice: rank 1 is gone: it died or hangs")


def test_ranks_that_follow_end_with_rank_0_alone_and_not_by_a_signal() -> None:
    with job(2, "cispo", 0) as ranks:
        ranks[0].await_line("step")
        for sign in (signal.SIGTERM, signal.SIGINT):
            os.kill(ranks[1].pid, sign)
        for _ in range(3):
            ranks[0].await_line("step")
        assert ranks[1].process.is_alive()
        ranks[0].kill()
        assert "rank 0 is gone" in last_words(ranks[1])


def test_what_fails_on_one_rank_is_told_by_rank_0_in_one_line() -> None:
    with job(2, "failing", 0) as ranks:
        ranks[0].await_line("ready")
        words = "sluice: rank 1 failed: ValueError: a mistake of the user's"
        assert last_words(ranks[0]) == words

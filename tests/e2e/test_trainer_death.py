"""kill -9 of the trainer between any two of its acts: nothing is lost or trained twice, and
what was learnt follows from the records bit for bit.

Fates do not depend on timing here: the trainer holds, and no group is without signal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stream import FAKE, ROOT, read_report, start, write_run

from benchmarks.chaos import recorded
from pipeline.bus.bus import Bus
from pipeline.ledger import Sum

PROMPTS, MEMBERS, PER_STEP = 48, 4, 4
FAULTS = """\
before record 2
after record 1
after team._rank.step 1
after step 1
after commit 1
before publisher.publish 2
before publisher._announce 2
after announce 2
after write_down 1
before checkpoints._put 1
after checkpoint 1
before bus.groups.finish 1
"""


def dying_up(
    folder: Path, path: Path, faults: str, url: str, *worlds: str
) -> subprocess.CompletedProcess[str]:
    (folder / "faults").write_text(faults)
    here = Path(__file__).parent
    return subprocess.run(
        [
            sys.executable,
            str(here / "dying_up.py"),
            str(path),
            str(folder / "faults"),
            url,
            *worlds,
        ],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(here)]),
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.timeout(300)
def test_a_trainer_killed_between_any_two_acts_loses_nothing_and_trains_nothing_twice(
    tmp_path: Path, server_url: str, run_name: str
) -> None:
    path = write_run(
        tmp_path,
        prompts=PROMPTS,
        top={"name": run_name, "steps": 1000},
        groups={"members": MEMBERS, "per_step": PER_STEP},
        sampling={"max_tokens": 24},
        training={"learning_rate": 1e-4, "pack_tokens": 512, "checkpoint_every": 3},
        up={"restarts": 20},
        **FAKE,
    )
    told = dying_up(tmp_path, path, FAULTS, server_url)
    assert told.returncode == 0, told.stdout + told.stderr
    assert not (tmp_path / "faults").read_text(), "every fault took place"

    bus = Bus.connect(server_url, run_name)
    state, ledger = bus.state(), bus.snapshot().ledger
    assert (state.stop, state.eof, state.cursor) == ("done", True, PROMPTS)
    assert ledger.keys() == {"generated", "trained"}, ledger
    assert ledger["trained"].members == PROMPTS * MEMBERS
    assert state.batch == state.step == PROMPTS // PER_STEP
    folder = tmp_path / "runs" / run_name
    everything = {(f"{g:08d}", m): 1 for g in range(PROMPTS) for m in range(MEMBERS)}
    assert recorded(folder) == everything
    report = read_report(tmp_path, run_name)
    assert report["balanced"] and report["restarts"]["training-0"] == len(FAULTS.splitlines()) // 6
    assert report["ledger"]["trained"]["members"] == PROMPTS * MEMBERS

    replay = start(tmp_path, "replay", str(path))
    out, err = replay.communicate(timeout=60)
    assert replay.returncode == 0, out + err
    assert f"step {state.step}: the same weights, bit for bit" in out
    assert ledger.get("cancelled", Sum(0, 0)) == Sum(0, 0)
    bus.purge()
    bus.close()

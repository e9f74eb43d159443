"""Whether memory stands still while members come and go (C086): after 2,000 and after 10,000.

    python -m benchmarks.memory                  # two minutes, or five beside other work

A whole `sluice up` on a server of its own. The engine is the fake one, so that members come fast;
scoring, the bus and the trainer, which steps the demo's small model, are real. What is measured is
the resident memory of each service's process with its children, and the server's used memory; each
is the median of the looks within 500 members after the mark. The streams are watched all the time:
what was settled is deleted from them, so that they are never longer than the window. The server
keeps a tombstone of each group for ten minutes, which is what it grows by here. For each bar a line
says whether it held; the last line is one JSON object. Exit 1 where one did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis

from pipeline.bus.bus import Bus
from pipeline.bus.keys import Keys
from pipeline.config import dump
from pipeline.errors import SluiceError
from pipeline.run import Run
from pipeline.watch import Snapshot
from services.up.embedded import Embedded
from services.up.spawn import Spawner

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "demo" / "model"
NAME, MEMBERS, PER_STEP = "memory", 8, 16
FIRST, LAST, NEARBY = 2_000, 10_000, 500
GROWTH_BYTES = 4 << 20
"""Of one process, or of the server, at most."""
LOOK_SECONDS = 0.2
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVICES = ("prompting", "inference", "scoring", "training")

Figures = dict[str, Any]


class Look(NamedTuple):
    """After so many trained members: bytes by process, its process ids, entries of the streams."""

    members: int
    bytes: dict[str, int]
    pids: frozenset[int]
    entries: int


def main() -> int:
    """The benchmark; its exit code."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-"))
    path, run = write_run(folder)
    with Spawner() as spawner:
        server = Embedded(folder, spawner, restarts=0)
        try:
            looks, code = watched(path, server.start())
        finally:
            server.stop()
    figures = summed(looks) | {"exit_code": code, "window_members": run.window * MEMBERS}
    held = bars(figures)
    for claim, holds in held.items():
        print(f"{'held  ' if holds else 'BROKEN'} {claim}")
    print(json.dumps(figures | {"bars_held": all(held.values())}))
    return 0 if all(held.values()) else 1


def bars(figures: Figures) -> dict[str, bool]:
    """Each claim, and whether it holds."""
    most = figures["window_members"]
    grown = {
        f"{name} has grown by {grown / 1e6:.1f} MB, at most {GROWTH_BYTES / 1e6:.1f}": grown
        <= GROWTH_BYTES
        for name, grown in figures["growth_bytes"].items()
    }
    return grown | {
        f"all of {', '.join(SERVICES)} and the server were seen": {*SERVICES, "server"}
        <= figures["growth_bytes"].keys(),
        f"at most {figures['most_entries']} stream entries, the window has {most} members": figures[
            "most_entries"
        ]
        <= most,
        f"{figures['members']} members >= {LAST}": figures["members"] >= LAST,
        "no process was started again": not figures["restarted"],
        "the run ended by itself": figures["exit_code"] == 0,
    }


def write_run(folder: Path) -> tuple[Path, Run]:
    """Enough prompts and steps for the last mark and what is looked at beyond it."""
    rng = random.Random(0)
    steps = -(-(LAST + 2 * NEARBY) // (MEMBERS * PER_STEP))
    lines = []
    for _ in range(2 * steps * PER_STEP):
        pairs = "".join(label + rng.choice("0123456789") for label in rng.sample("abcdefgh", 5))
        lines.append(json.dumps({"prompt": f"{pairs}=1", "reference": ""}))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    vocabulary = json.loads((MODEL / "config.json").read_bytes())["vocab_size"]
    keys = {
        "name": NAME,
        "steps": steps,
        "model": {"path": str(MODEL)},
        "data": {"use": "jsonl", "path": "prompts.jsonl"},
        "groups": {"members": MEMBERS, "per_step": PER_STEP},
        "sampling": {"max_tokens": 24},
        "inference": {"engine": {"use": "fake", "vocabulary": vocabulary}},
        "scoring": {"scorers": ["benchmarks.rewards:by_hash"]},
        "training": {"learning_rate": 1e-5, "pack_tokens": 1024},
    }
    run = msgspec.convert(keys, Run)
    (folder / "run.toml").write_text(dump(run))
    return folder / "run.toml", run


def watched(path: Path, url: str) -> tuple[list[Look], int]:
    """Runs it to its end, and looks at it; the exit code."""
    up = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "up", str(path), "--redis", url],
        cwd=path.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    looks: list[Look] = []
    with contextlib.closing(Bus.connect(url, NAME)) as bus, redis.Redis.from_url(url) as client:
        while up.poll() is None:
            with contextlib.suppress(SluiceError, OSError):
                looks.append(look(bus.snapshot(), client))
            time.sleep(LOOK_SECONDS)
    return looks, up.returncode


def look(snapshot: Snapshot, client: redis.Redis) -> Look:
    """One look at all processes that are alive, and at the server."""
    pids = {
        seen.beat.service: seen.beat.pid
        for seen in snapshot.beats
        if seen.alive and seen.beat.service in SERVICES
    }
    taken = {name: resident(pid) for name, pid in pids.items()}
    taken["server"] = int(client.info("memory")["used_memory"])
    keys = Keys(NAME)
    entries = sum(int(client.xlen(key)) for key in (keys.prompts, keys.completions, keys.dead))
    trained = snapshot.ledger["trained"].members if "trained" in snapshot.ledger else 0
    return Look(trained, taken, frozenset(pids.values()), entries)


def resident(pid: int) -> int:
    """Bytes of a process and all that it has started. Raises OSError where one has just ended."""
    folder = Path("/proc", str(pid))
    pages = int((folder / "statm").read_text().split()[1])
    children = [
        child for each in folder.glob("task/*/children") for child in each.read_text().split()
    ]
    return pages * PAGE_BYTES + sum(resident(int(child)) for child in children)


def summed(looks: list[Look]) -> Figures:
    """What stood after the first mark, after the last, and the difference."""
    after = {mark: median(near(looks, mark)) for mark in (FIRST, LAST)}
    between = [each for each in looks if each.members >= FIRST and len(each.pids) == len(SERVICES)]
    return {
        "members": max(each.members for each in looks),
        f"bytes_after_{FIRST}": after[FIRST],
        f"bytes_after_{LAST}": after[LAST],
        "growth_bytes": {
            name: after[LAST][name] - taken
            for name, taken in after[FIRST].items()
            if name in after[LAST]
        },
        "most_entries": max(each.entries for each in looks),
        "restarted": len({each.pids for each in between}) != 1,
    }


def near(looks: list[Look], mark: int) -> list[Look]:
    """Those just after the mark."""
    return [each for each in looks if mark <= each.members < mark + NEARBY]


def median(looks: list[Look]) -> dict[str, int]:
    """Bytes by process."""
    names = {name for each in looks for name in each.bytes}
    return {
        name: int(statistics.median(each.bytes[name] for each in looks if name in each.bytes))
        for name in sorted(names)
    }


if __name__ == "__main__":
    sys.exit(main())

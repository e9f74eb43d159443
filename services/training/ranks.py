"""Rank 0 orders, the other ranks follow: one trainer of any number of processes. † torch

Rank 0 alone talks to the bus and the disk, and runs the loop in `service`; nothing that it writes
knows of ranks. What is done at an order is done by all ranks at once.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pipeline import plugins
from pipeline.errors import ConfigError, SluiceError
from pipeline.protocols import Backend, Pack, Rank, Snapshot
from pipeline.run import Run
from services.training.objective import Objective
from services.training.optimize import Act, Done, act_alone
from services.training.packing import BY_TOKENS, Cost
from services.training.pulse import Pulse
from services.training.shares import share
from services.training.wire import Order, Reply, StepOrder, Wire, flattened, unflattened
from services.training.world import World, join, world

Named = tuple[str, Tensor]

LEASES = 2
"""A rank may be silent for so many before it is taken for dead."""


class Team(NamedTuple):
    """The back end as the service sees it, and how it steps."""

    backend: Backend
    act: Act


def check(run: Run) -> None:
    """Raises ConfigError where torchrun has started ranks for a back end that knows but one."""
    spec, size = run.training.backend, world().size
    if size > 1 and plugins.name_of(spec, "training.backend") == "torch":
        rule = f"is one process, and this one is of {size}"
        remedy = 'set training.backend = "deepspeed", or start one alone'
        raise ConfigError("training.backend", spec, rule=rule, remedy=remedy)


def lead(rank: Rank, objective: Objective, run: Run, *, cost: Cost = BY_TOKENS) -> Team:
    """Rank 0's; alone where there is no other. To be called while the others call `follow`.

    `cost` is what a sequence takes, by which steps are shared out.
    """
    if world().size == 1:
        return Team(rank, partial(act_alone, rank, objective))
    leader = Leader(rank, objective, join(), run=run, cost=cost)
    return Team(leader, leader.act)


class Leader:
    """Implements `pipeline.protocols.Backend` for all ranks, from rank 0."""

    def __init__(
        self, rank: Rank, objective: Objective, me: World, *, run: Run, cost: Cost
    ) -> None:
        self._rank, self._objective, self._cost = rank, objective, cost
        self._pack_tokens = run.training.pack_tokens
        self._wire, self._others = Wire(), range(1, me.size)
        self._pulse = Pulse(me, limit=LEASES * run.bus.lease_seconds)

    def act(self, packs: Sequence[Pack], rate: float) -> Done:
        """One step of all ranks on the packs, which are shared out among them."""
        ranks = len(self._others) + 1
        shares = share(packs, ranks, self._pack_tokens, cost=self._cost)
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(StepOrder(rate, flattened(shares[other])), other)
            done = act_alone(
                self._rank, self._objective, shares[0], rate, gathered=self._wire.gathered
            )
            for other in self._others:
                reply = self._wire.receive(other)
                assert isinstance(reply, Reply)
                if reply.finite != done.result.finite:
                    raise SluiceError(f"rank {other} has not stepped as rank 0 has")
                done.statistics.merge(reply.sums)
        return done

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
                self._wire.receive(other)
        self._pulse.leave()

    def _order(self, order: Order) -> None:
        with blaming(self._pulse):
            for other in self._others:
                self._wire.send(order, other)


def follow(rank: Rank, objective: Objective, run: Run) -> None:
    """What the other ranks do until rank 0 says stop. Raises SluiceError where one is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it is rank 0 that ends in order, and needs all
    me, wire = join(), Wire()
    pulse = Pulse(me, limit=LEASES * run.bus.lease_seconds)
    try:
        with blaming(pulse):
            while (order := wire.receive(0)) != Order("stop"):
                _obey(rank, objective, wire=wire, order=order)
    except SluiceError:
        raise
    except BaseException as exc:
        pulse.leave(exc)
        raise
    pulse.leave()
    wire.send(order, 0)


def _obey(rank: Rank, objective: Objective, *, wire: Wire, order: Any) -> None:
    match order:
        case StepOrder(rate, packs):
            done = act_alone(rank, objective, unflattened(packs), rate, gathered=wire.gathered)
            wire.send(Reply(done.result.finite, done.statistics.sums()), 0)
        case Order("weights"):
            deque(rank.weights(), maxlen=0)
        case Order("masters"):
            deque(rank.masters(), maxlen=0)
        case Order("save", folder):
            rank.save(folder)
        case Order("snapshot"):
            rank.snapshot()
        case Order("load_state", folder):
            rank.load_state(folder)


@contextmanager
def blaming(pulse: Pulse) -> Iterator[None]:
    """A broken connection is told as the rank that is gone."""
    try:
        yield
    except RuntimeError as exc:
        error = pulse.blame(exc)
        if error is exc:
            raise
        raise error from exc

"""A deterministic engine without a model: instant, torch-free, for tests of everything around it.

Its tokens depend on (seed, group, member, position, version) and on nothing else. Where some ids
may not be drawn it claims that a few were kept, the drawn one among them.
"""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from pipeline.messages import Canary, Completion, Manifest, Work
from pipeline.protocols import Device, Flip, Load, StepTimes, Transport
from pipeline.run import Model, Swap
from services.inference.engines.members import Member, check_scored, members, share_of

_BITS = (1 << 64) - 1
_WORST_LOGPROB = -4.0
_MOST_KEPT = 5


class Row:
    """A member in flight: its tokens so far, and how many of them are in its spans."""

    def __init__(self, member: Member, max_length: int) -> None:
        prompt, prefix = member.prompt, member.prefix
        self.member = member
        self.limit = member.limit(max_length) - len(prompt.ids) // 4
        self.ids = array("i", prefix.ids if prefix else b"")
        self.logprobs = array("f", prefix.logprobs if prefix else b"")
        self.closed = len(self.ids)
        self.key = _hash(f"{prompt.seed}/{prompt.noise or prompt.group}/{member.number}")

    def close_span(self, version: int, boot: str) -> None:
        self.member.ran(version, len(self.ids) - self.closed, boot)
        self.closed = len(self.ids)

    def cut_back(self, version: int, boot: str) -> int:
        self.close_span(version, boot)
        dropped = self.member.cut_back(version, boot)
        self.closed -= dropped
        del self.ids[self.closed :], self.logprobs[self.closed :]
        return dropped


class Live(NamedTuple):
    """What the adopted manifest claims."""

    version: int = -1
    fingerprint: str = ""
    canary: Canary | None = None


class FakeEngine:
    """Like any engine, but nothing is computed and nothing is received."""

    device = Device("core", 1)

    def __init__(
        self,
        *,
        boot: str,
        slots: int = 64,
        vocabulary: int = 32,
        end_ids: frozenset[int] = frozenset({0}),
        max_length: int = 4096,
        planted: Mapping[int, int] | None = None,
        swap: Swap = "keep",
    ) -> None:
        """`planted` maps a version to the one token that it emits; others draw from all."""
        self.boot = boot
        self.last_step = StepTimes(perf_counter(), 0.0, False, 0)
        self._slots, self._vocabulary, self._max_length = slots, vocabulary, max_length
        self._end_ids, self._planted = end_ids, dict(planted or {})
        self._queue: deque[Row] = deque()
        self._rows: list[Row] = []
        self._group_size = slots
        self._staged: Manifest | None = None
        self._live = self._former = Live()
        self._drains, self._draining = swap == "drain", False

    @property
    def version(self) -> int:
        return self._live.version

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._queue)

    @property
    def load(self) -> Load:
        """Its keys and values, if it had any, would be the rows' slots."""
        running = len(self._rows)
        return Load(running, len(self._queue), running / self._slots)

    def room(self) -> int:
        """Groups of the size seen last that would start now; 0 before there is a version."""
        free = self._slots - len(self._rows) - len(self._queue)
        return 0 if self.version < 0 or self._draining else max(0, -(-free // self._group_size))

    def add(self, work: Work) -> None:
        """Queue the members to do. Raises Refused where the prompt can never be answered."""
        assert self.version >= 0, "nothing may be added before the first version is adopted"
        new = members(work, max_length=self._max_length, vocabulary=self._vocabulary)
        self._group_size = max(1, work.prompt.members)
        self._queue.extend(Row(member, self._max_length) for member in new)

    def drop(self, group: str) -> None:
        """Forget every sequence of a group, running or queued."""
        self._queue = deque(row for row in self._queue if row.member.prompt.group != group)
        self._rows = [row for row in self._rows if row.member.prompt.group != group]

    def step(self) -> list[Completion]:
        """One token for each running member; those that finished with it."""
        started, prefill = perf_counter(), False
        while self._queue and len(self._rows) < self._slots and not self._draining:
            self._rows.append(self._queue.popleft())
            prefill = True
        drawn = sum([self._draw(row) for row in self._rows])
        done = [row for row in self._rows if self._finish(row)]
        self._rows = [row for row in self._rows if not self._finish(row)]
        ended = perf_counter()
        self.last_step = StepTimes(ended, ended - started, prefill, drawn)
        return [self._completion(row, self._finish(row)) for row in done]

    def prefixes(self) -> list[Completion]:
        """Every running or queued member that has a token, as a prefix (finish None)."""
        return [self._completion(row, None) for row in (*self._rows, *self._queue) if row.ids]

    def park(self) -> list[Completion]:
        """The prefixes; the engine is empty afterwards."""
        parked = self.prefixes()
        self._rows, self._queue = [], deque()
        return parked

    def stage(self, manifest: Manifest, transport: Transport) -> None:
        """The manifest is all that there is to receive."""
        if manifest.version > self.version:
            self._staged = manifest

    def staging_error(self) -> str | None:
        """Nothing is received, so nothing fails."""
        return None

    def flip(self) -> Flip | None:
        """Adopt the staged version; with `drain` only once no row is in use."""
        started = perf_counter()
        self._draining = self._drains and self._staged is not None and bool(self._rows)
        if self._staged is None or self._draining:
            return None
        for row in self._rows:
            row.close_span(self.version, self.boot)
        staged, self._staged = self._staged, None
        self._former = self._live
        self._live = Live(staged.version, staged.fingerprint, staged.canary)
        return Flip(self.version, perf_counter() - started)

    def revert(self) -> int:
        """Back to the version before the last flip, and to the tokens that there were by then."""
        dropped = sum(row.cut_back(self.version, self.boot) for row in self._rows)
        self._live = self._former
        return dropped

    def fingerprint(self) -> str:
        """The one that the adopted manifest claims."""
        return self._live.fingerprint

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Those that the adopted manifest claims of its canary; of others, ones of its own."""
        claimed = self._live.canary
        if claimed and claimed.ids == array("i", ids).tobytes():
            return array("f", claimed.logprobs).tolist()
        check_scored(ids, max_length=self._max_length, vocabulary=self._vocabulary)
        key = _hash(f"{self.version}/{[*ids]}")
        return [_logprob(_mix(key + place)) for place in range(1, len(ids))]

    def pin(self) -> FakeEngine:
        """Another that stays at this version."""
        twin = copy.copy(self)
        twin._queue, twin._rows, twin._staged = deque(), [], None
        twin._drains = twin._draining = False
        twin._slots = share_of(self._slots)
        return twin

    def close(self) -> None:
        """Forget all work."""
        self.park()

    def _draw(self, row: Row) -> bool:
        """Append a token, unless a resumed prefix has all that it may have; whether it did."""
        if len(row.ids) >= row.limit:
            return False
        noise = _mix(row.key ^ _mix(len(row.ids) << 32 | self.version))
        token = self._planted.get(self.version, noise % self._vocabulary)
        row.ids.append(token)
        row.logprobs.append(_logprob(noise))
        if row.member.trail:
            row.member.trail.add(self._kept(token, 1 + noise % _MOST_KEPT).tobytes())
        return True

    def _kept(self, token: int, count: int) -> array[int]:
        """The token and those after it, ascending; none for the whole vocabulary."""
        ids = sorted({(token + i) % self._vocabulary for i in range(count)})
        return array("i", ids if len(ids) < self._vocabulary else [])

    def _finish(self, row: Row) -> Literal["stop", "length"] | None:
        if row.ids[-1] in self._end_ids:
            return "stop"
        return "length" if len(row.ids) >= row.limit else None

    def _completion(self, row: Row, finish: Literal["stop", "length"] | None) -> Completion:
        row.close_span(self.version, self.boot)
        ids, logprobs = row.ids.tobytes(), row.logprobs.tobytes()
        return row.member.completion(ids, logprobs, engine=self.boot, finish=finish)


def build(
    model: Model,
    *,
    boot: str,
    swap: Swap = "keep",
    slots: Annotated[int, Meta(ge=1)] = 64,
    vocabulary: int = 32,
    max_length: int = 4096,
) -> FakeEngine:
    """As the run's engine; it has no use for `model`, and of `swap` for `drain` alone."""
    return FakeEngine(
        boot=boot, slots=slots, vocabulary=vocabulary, max_length=max_length, swap=swap
    )


def _logprob(noise: int) -> float:
    return _WORST_LOGPROB * (noise >> 40) / (1 << 24)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _BITS
    return x ^ x >> 31

"""The rows in flight as arrays, one entry a row: the first `count` are in use, without gaps.

Arrays and not objects, since a step touches every row. Keys and values are in `cache`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.messages import Completion, Finish
from pipeline.model.sampling import member_key
from services.inference.engines.members import Member

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Rows:
    """Prompt and completion of each row side by side, and what its next draw needs."""

    def __init__(self, slots: int, capacity: int, *, ends: NDArray[np.bool_]) -> None:
        """`ends` [vocabulary] tells which ids end a completion."""
        self._ends = ends
        self.members: list[Member] = []
        self.ids = np.zeros((slots, capacity), np.int64)
        self.logprobs = np.zeros((slots, capacity), np.float32)
        self.start, self.length, self.limit, self.closed, self.key = np.zeros((5, slots), np.int64)
        self.temperature = np.zeros(slots, np.float32)
        self._every = np.arange(slots)

    @property
    def count(self) -> int:
        return len(self.members)

    def grow(self, capacity: int) -> None:
        """More positions; what is stored stays."""
        more = ((0, 0), (0, capacity - self.ids.shape[1]))
        self.ids, self.logprobs = np.pad(self.ids, more), np.pad(self.logprobs, more)

    def add(self, member: Member, max_length: int) -> int:
        """Its row: the prompt, then the prefix where there is one."""
        row, prompt, prefix = self.count, member.prompt, member.prefix
        ids = prompt.ids + (prefix.ids if prefix else b"")
        self.start[row] = start = len(prompt.ids) // 4
        self.length[row] = self.closed[row] = length = len(ids) // 4
        self.limit[row] = member.limit(max_length)
        self.ids[row, :length] = np.frombuffer(ids, "<i4")
        if prefix:
            self.logprobs[row, start:length] = np.frombuffer(prefix.logprobs, "<f4")
        self.key[row] = member_key(prompt.seed, prompt.group, member.number)
        self.temperature[row] = prompt.sampling.temperature
        self.members.append(member)
        return row

    def last_ids(self) -> Ints:
        """The last token of each row, [count]."""
        tokens: Ints = self.ids[self._every[: self.count], self.length[: self.count] - 1]
        return tokens

    def append(self, ids: Ints, logprobs: Floats) -> Ints:
        """One token for each row, [count]; the rows that finished with it."""
        rows = self._every[: self.count]
        at = self.length[: self.count]
        self.ids[rows, at] = ids
        self.logprobs[rows, at] = logprobs
        at += 1
        return np.flatnonzero(self._ends[ids] | (at >= self.limit[: self.count]))

    def close_spans(self, version: int, boot: str) -> None:
        """What was drawn since the last call, `version` drew."""
        for row in range(self.count):
            self._close_span(row, version, boot)

    def finish(self, row: int, version: int, boot: str) -> Completion:
        """The completion of a row that is done."""
        stopped = self._ends[self.ids[row, self.length[row] - 1]]
        return self.completion(row, version, boot, "stop" if stopped else "length")

    def completion(self, row: int, version: int, boot: str, finish: Finish | None) -> Completion:
        """The completion of a row so far."""
        self._close_span(row, version, boot)
        own = slice(self.start[row], self.length[row])
        return self.members[row].completion(
            self.ids[row, own].astype("<i4").tobytes(),
            self.logprobs[row, own].astype("<f4").tobytes(),
            engine=boot,
            finish=finish,
        )

    def remove(self, gone: Ints) -> tuple[Ints, Ints]:
        """Close the gaps with the last rows: rows `source` now stand at `target`."""
        kept = self.count - len(gone)
        target = gone[gone < kept]
        source = np.setdiff1d(self._every[kept : self.count], gone)
        for column in (
            *(self.ids, self.logprobs, self.start, self.length, self.limit),
            *(self.closed, self.key, self.temperature),
        ):
            column[target] = column[source]
        for new, old in zip(target.tolist(), source.tolist(), strict=True):
            self.members[new] = self.members[old]
        del self.members[kept:]
        return source, target

    def _close_span(self, row: int, version: int, boot: str) -> None:
        self.members[row].ran(version, int(self.length[row] - self.closed[row]), boot)
        self.closed[row] = self.length[row]

"""The rows in flight as arrays, one entry a row: the first `count` are in use, without gaps.

Arrays and not objects, since a step touches every row. Keys and values are in `cache`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.messages import Completion, Finish, Kept, Sampling
from pipeline.model.sampling import member_key
from services.inference.engines.members import Member

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

NO_VERSION = -1


class Rows:
    """Prompt and completion of each row side by side, and what its next draw needs."""

    def __init__(self, slots: int, capacity: int, *, ends: NDArray[np.bool_]) -> None:
        """`ends` [vocabulary] tells which ids end a completion."""
        self._ends = ends
        self.members: list[Member] = []
        self.ids = np.zeros((slots, capacity), np.int64)
        self.logprobs = np.zeros((slots, capacity), np.float32)
        self.start, self.length, self.limit, self.closed, self.key = np.zeros((5, slots), np.int64)
        self.prompt_version = np.zeros(slots, np.int64)  # whose weights made the prompt's keys
        self.temperature = np.zeros(slots, np.float32)
        self.top_k = np.zeros(slots, np.int64)
        self.top_p, self.min_p = np.zeros((2, slots), np.float64)
        self.truncates = np.zeros(slots, np.bool_)
        self._every = np.arange(slots)

    def alike(self, slots: int, capacity: int) -> Rows:
        """Others of the same vocabulary."""
        return Rows(slots, capacity, ends=self._ends)

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
        self.key[row] = member_key(prompt.seed, prompt.noise or prompt.group, member.number)
        self._sample_by(row, prompt.sampling)
        self.members.append(member)
        return row

    def rewind(self, row: int) -> None:
        """Have the completion read again from its first token, one a step, as if it were drawn."""
        assert self.closed[row] >= self.length[row], "what was drawn has its span"
        self.length[row] = self.start[row]

    @property
    def num_drawing(self) -> int:
        """Rows whose next token is not there yet."""
        return int(np.count_nonzero(self.length[: self.count] >= self.closed[: self.count]))

    def truncating(self) -> Ints:
        """The rows that may not draw every id."""
        return np.flatnonzero(self.truncates[: self.count])

    def append(self, ids: Ints, logprobs: Floats, kept: Kept | None = None) -> Ints:
        """One token for each row, [count]; the rows that finished with it.

        `kept` has what the rows that truncate drew from, in their order.
        """
        rows = self._every[: self.count]
        at = self.length[: self.count]
        again = at < self.closed[: self.count]
        self.ids[rows, at] = ids = np.where(again, self.ids[rows, at], ids)
        self.logprobs[rows, at] = np.where(again, self.logprobs[rows, at], logprobs)
        if kept is not None:
            self._record(kept, again)
        at += 1
        return np.flatnonzero(self._ends[ids] | (at >= self.limit[: self.count]))

    def rename(self, version: int, same: int) -> None:
        """Two versions are the same weights: keys of the one are keys of the other."""
        made_by = self.prompt_version[: self.count]
        made_by[made_by == version] = same

    def older_than(self, version: float) -> list[int]:
        """The rows whose oldest keys, the prompt's, an older version made; or none, by now."""
        made_by = self.prompt_version[: self.count]
        rows: list[int] = np.flatnonzero((made_by < version) | (made_by == NO_VERSION)).tolist()
        return rows

    def cut_back(self, version: int, boot: str) -> int:
        """Drop what this version sampled last; how many tokens. No row has keys afterwards."""
        self.close_spans(version, boot)
        dropped = [member.cut_back(version, boot) for member in self.members]
        self.closed[: self.count] -= np.array(dropped, np.int64)
        self.length[: self.count] = self.closed[: self.count]
        self.prompt_version[: self.count] = NO_VERSION
        return sum(dropped)

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
        own = slice(self.start[row], self.closed[row])
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
            *(self.closed, self.key, self.temperature, self.truncates),
            *(self.top_k, self.top_p, self.min_p, self.prompt_version),
        ):
            column[target] = column[source]
        for new, old in zip(target.tolist(), source.tolist(), strict=True):
            self.members[new] = self.members[old]
        del self.members[kept:]
        return source, target

    def _sample_by(self, row: int, sampling: Sampling) -> None:
        self.temperature[row], self.truncates[row] = sampling.temperature, sampling.truncates
        self.top_k[row], self.top_p[row] = sampling.top_k, sampling.top_p
        self.min_p[row] = sampling.min_p

    def _record(self, kept: Kept, again: NDArray[np.bool_]) -> None:
        start, ends = 0, 4 * np.cumsum(np.frombuffer(kept.counts, "<i4"))
        for row, end in zip(self.truncating().tolist(), ends.tolist(), strict=True):
            trail = self.members[row].trail
            assert trail is not None, "a row that truncates has a trail"
            if not again[row]:
                trail.add(kept.ids[start:end])
            start = end

    def _close_span(self, row: int, version: int, boot: str) -> None:
        known = max(self.length[row], self.closed[row])
        self.members[row].ran(version, int(known - self.closed[row]), boot)
        self.closed[row] = known

"""The numbers of an inference process."""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Iterable

from pipeline.messages import Completion
from pipeline.metrics import Clock, Metrics

KEPT_GAPS = 4096


class Numbers:
    """Counters of what was sampled, and what a flip costs by the tokens' own timestamps.

    A token is counted by the process that sampled it, once: when it was delivered or saved, or
    when it turned out to be of no use.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics)
        self._saved: dict[tuple[str, int], int] = {}
        self.tokens = metrics.counter("tokens", "Tokens sampled here, and delivered or saved.")
        self.members = metrics.counter("members", "Members delivered.")
        self.lost_tokens = metrics.counter("lost_tokens", "Tokens sampled here, and of no use.")
        self.flips = metrics.counter("flips", "Flips to new weights.")
        self.wrong_flips = metrics.counter("wrong_flips", "Flips that were undone.")
        self.staging_errors = metrics.counter("staging_errors", "Versions that were not staged.")
        self.sequences = metrics.gauge("sequences", "Members being decoded.")
        gaps = Gaps()
        self.gaps = gaps
        step = metrics.gauge("decode_step_seconds", "Median gap between two tokens of a sequence.")
        step.set_function(gaps.median)
        swap = metrics.gauge("swap_pause_seconds", "Median gap across a flip less the median gap.")
        swap.set_function(gaps.swap_pause)
        chance = metrics.gauge("random_pause_seconds", "The same, at random steps without a flip.")
        chance.set_function(gaps.random_pause)

    def delivered(self, completion: Completion, boot: str, reply: str) -> None:
        """A member was handed in, and the bus said `reply`."""
        if reply == "ok":
            self.members.inc()
            self.saved(completion, boot)
        self.lost([completion], boot)

    def saved(self, prefix: Completion, boot: str) -> None:
        """A member's tokens up to here are on the bus; it may still go on."""
        member, kept = (prefix.group, prefix.member), own_tokens(prefix, boot)
        self.tokens.inc(max(0, kept - self._saved.get(member, 0)))
        self._saved[member] = kept

    def lost(self, ended: Iterable[Completion], boot: str) -> None:
        """These end here: what of them is not on the bus was for nothing."""
        for completion in ended:
            saved = self._saved.pop((completion.group, completion.member), 0)
            self.lost_tokens.inc(max(0, own_tokens(completion, boot) - saved))

    def rest(self) -> None:
        """Nothing is being decoded."""
        self.sequences.set(0)
        self.gaps.interrupt()


def own_tokens(completion: Completion, boot: str) -> int:
    """Those that this boot sampled; a resumed prefix has others'."""
    return sum(span.tokens for span in completion.spans if span.boot == boot)


class Gaps:
    """Seconds between the tokens of the same sequences, with and without a flip between them.

    A gap counts where the later step prefilled nothing, so that it is one decode step and whatever
    the loop did before it.
    """

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=KEPT_GAPS)
        self._across: deque[float] = deque(maxlen=KEPT_GAPS)
        self._last: float | None = None

    def observe(self, *, ended: float, prefill: bool, flipped: bool) -> None:
        """A step that ended at `ended` (perf_counter seconds)."""
        if self._last is not None and not prefill:
            (self._across if flipped else self._plain).append(ended - self._last)
        self._last = ended

    def interrupt(self) -> None:
        """Nothing was being decoded: the next step has no gap."""
        self._last = None

    def median(self) -> float:
        """The median gap without a flip, in seconds."""
        return statistics.median(self._plain) if self._plain else float("nan")

    def swap_pause(self) -> float:
        """The median gap across a flip less the median gap."""
        return statistics.median(self._across) - self.median() if self._across else float("nan")

    def random_pause(self) -> float:
        """The same at as many random steps without a flip: what chance alone shows."""
        plain = list(self._plain)
        count = min(len(self._across), len(plain))
        if not count:
            return float("nan")
        return statistics.median(random.Random(0).sample(plain, count)) - self.median()

"""The numbers of an inference process."""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Iterable

from pipeline.clock import Clock
from pipeline.messages import Completion
from pipeline.metrics import Metrics
from pipeline.protocols import DEVICES, Device, Engine, Flip, StepTimes
from pipeline.watch.waits import FRESHER, PROMPTS, QUARANTINE, WEIGHTS

KEPT_GAPS = 4096

LENGTHS = tuple(2**n for n in range(4, 17))
"""Bounds of the histogram of completions, in tokens."""

GAPS = ("largest", "mean")
OUTCOMES = ("answered", "refused", "crowded", "unavailable", "failed", "left")
"""What becomes of a request of the endpoint."""

CAUSES = (PROMPTS, WEIGHTS, FRESHER, QUARANTINE)
"""What an engine without work waits for."""


class Numbers:
    """Counters of what was sampled, and what a flip costs by the tokens' own timestamps.

    A token is counted by the process that sampled it, once: when it was delivered or saved, or
    when it turned out to be of no use.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics, causes=CAUSES)
        self.gaps = Gaps()
        self._saved: dict[tuple[str, int], int] = {}
        self.tokens = metrics.counter("tokens", "Tokens sampled here, and delivered or saved.")
        self.lost_tokens = metrics.counter("lost_tokens", "Tokens sampled here, and of no use.")
        self.members = metrics.counter("members", "Members delivered.")
        self.truncated = metrics.counter(
            "truncated_members", "Members delivered that had reached their limit of tokens."
        )
        self.lengths = metrics.histogram(
            "completion_tokens", "Tokens of a member that was delivered.", LENGTHS
        )
        self.device_seconds = metrics.counter_by(
            "device_seconds", "Seconds of forward passes, times the cores or GPUs.", device=DEVICES
        )
        self.endpoint_requests = metrics.counter_by(
            "endpoint_requests", "Requests of the endpoint.", outcome=OUTCOMES
        )
        self.endpoint_tokens = metrics.counter(
            "endpoint_tokens", "Tokens that the endpoint has told, of no member of the run."
        )
        self._declare_flips(metrics)
        self._declare_canary(metrics)
        self._declare_gauges(metrics)

    def _declare_flips(self, metrics: Metrics) -> None:
        self.flips = metrics.counter("flips", "Flips to new weights.")
        self.flip_seconds = metrics.counter("flip_seconds", "Seconds that flips took.")
        self.stage_seconds = metrics.counter(
            "stage_seconds",
            "Seconds that versions took to arrive and be verified, then flipped to.",
        )
        self.verify_seconds = metrics.counter(
            "verify_seconds", "Of the stage seconds those in which tensors were verified."
        )
        self.stage_bytes = metrics.counter("stage_bytes", "Bytes of the versions flipped to.")
        self.wrong_flips = metrics.counter("wrong_flips", "Flips that were undone.")
        self.staging_errors = metrics.counter("staging_errors", "Versions that were not staged.")

    def _declare_canary(self, metrics: Metrics) -> None:
        self.canary_gap = metrics.gauge_by(
            "canary_gap_nats",
            "Differences of this engine's log-probs of the canary from the trainer's.",
            of=GAPS,
        )
        self.canary_version = metrics.gauge("canary_version", "The version that they are of.")
        self.canary_limit = metrics.gauge(
            "canary_limit_nats", "The largest that is allowed; beyond it a flip is undone."
        )
        self.examined(-1, math.nan, math.nan)

    def examined(self, version: int, *gap: float) -> None:
        """The engine was held against the canary of a version: the largest gap, and the mean."""
        self.canary_version.set(version)
        for of, value in zip(GAPS, gap, strict=True):
            self.canary_gap.labels(of=of).set(value)

    def _declare_gauges(self, metrics: Metrics) -> None:
        """Each is asked for when it is looked at; what an engine knows, once `watch` names it."""
        self.version = metrics.gauge("version", "The version that the next token is sampled by.")
        self.running = metrics.gauge("running_sequences", "Sequences being decoded.")
        self.waiting = metrics.gauge("waiting_sequences", "Sequences taken, and without a slot.")
        self.kv = metrics.gauge("kv_ratio", "Keys and values in use, of all that there may be.")
        step = metrics.gauge("decode_step_seconds", "Median gap between two tokens of a sequence.")
        step.set_function(self.gaps.median)
        swap = metrics.gauge("swap_pause_seconds", "Median gap across a flip less the median gap.")
        swap.set_function(self.gaps.swap_pause)
        chance = metrics.gauge("random_pause_seconds", "The same, at random steps without a flip.")
        chance.set_function(self.gaps.random_pause)

    def watch(self, engine: Engine) -> None:
        """From now on the gauges speak of this engine."""
        self.version.set_function(lambda: engine.version)
        self.running.set_function(lambda: engine.load.running)
        self.waiting.set_function(lambda: engine.load.waiting)
        self.kv.set_function(lambda: engine.load.kv_share)

    def stepped(self, times: StepTimes, device: Device, *, flipped: bool) -> None:
        """A forward pass was made; whether a flip came before it."""
        self.gaps.observe(ended=times.ended, prefill=times.prefill, flipped=flipped)
        self.device_seconds.labels(device=device.kind).inc(times.seconds * device.number)

    def flipped(self, flip: Flip) -> None:
        """A version was adopted."""
        self.flips.inc()
        self.flip_seconds.inc(flip.pause_seconds)
        self.stage_seconds.inc(flip.staging.seconds)
        self.verify_seconds.inc(flip.staging.verify_seconds)
        self.stage_bytes.inc(flip.staging.num_bytes)

    def delivered(self, completion: Completion, boot: str, reply: str) -> None:
        """A member was handed in, and the bus said `reply`."""
        if reply == "ok":
            self.members.inc()
            self.truncated.inc(completion.finish == "length")
            self.lengths.observe(completion.tokens)
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
            self.dropped(max(0, own_tokens(completion, boot) - saved))

    def dropped(self, tokens: int) -> None:
        """So many tokens were sampled for nothing."""
        self.lost_tokens.inc(tokens)


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

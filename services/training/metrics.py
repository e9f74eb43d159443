"""The numbers of the training process; those of the run as a whole are in `run_metrics`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import disk
from pipeline.clock import Clock
from pipeline.families import SINKS
from pipeline.grades import Point
from pipeline.ledger import FLAWS
from pipeline.metrics import Metrics
from pipeline.watch.waits import GROUPS, OLDER_GROUPS
from services.training.starvation import BYS
from services.training.suspected import Suspected

CAUSES = (GROUPS, OLDER_GROUPS)
"""What a trainer without work waits for."""

COMMON = ("stale", "future_version", "orphan_version", "scorer_error", "skipped")
REASONS = (*COMMON, "masked", *FLAWS)
LENGTHS = (64, 256, 1024, 4096, 16384, 65536)
"""Bounds of the buckets in which refusals are counted, in tokens of a completion."""
BUCKETS = (*map(str, LENGTHS), "more")
LAGS = (*map(str, range(16)), "more")
LAG_BUCKETS_TO = (0, 1, 2, 4, 8)
"""Bounds of the buckets of lags that a step's figures are told by, in steps."""
LAG_BUCKETS = ("0", "1", "2", "3-4", "5-8", "9+")
PARTS = WAITED, COPIED, WRITTEN = "waited", "copied", "written"
"""Of a checkpoint: training stands while it waits for the one before, and while it copies."""


def bucket(tokens: int) -> str:
    """The bucket of a length: up to so many tokens."""
    return next((str(bound) for bound in LENGTHS if tokens <= bound), "more")


class Shown(NamedTuple):
    """A number of the last step: its key in metrics.jsonl, its name, and what it is."""

    key: str
    noun: str
    text: str


SHOWN = (
    Shown("reward", "reward", "Mean reward of the groups of the last step."),
    Shown("completion_tokens", "completion_tokens", "Mean length of the last step's members."),
    Shown("lag_mean", "lag_mean_steps", "Mean lag of the tokens of the last step."),
    Shown("lag_p95", "lag_p95_steps", "Lag that 95 % of the last step's tokens did not exceed."),
    Shown("lag_max", "lag_max_steps", "Largest lag of a token of the last step."),
    Shown("mismatch_k3", "mismatch_k3_nats", "Mean of r - 1 - log r, where r = trainer / engine."),
    Shown(
        "engine_k3",
        "engine_mismatch_k3_nats",
        "As mismatch_k3, of the tokens of lag 0 alone: what the engines compute otherwise.",
    ),
    Shown("drift_k3", "drift_k3_nats", "The rest of mismatch_k3, of the older tokens."),
    Shown("ess", "ess_ratio", "Effective sample size of the last step's tokens, of their number."),
    Shown("gap_max", "log_ratio_max_nats", "Largest |log r| of a token of the last step."),
    Shown(
        "engine_gap_max",
        "engine_log_ratio_max_nats",
        "Largest |log r| of a token of lag 0 of the last step.",
    ),
    Shown("clipped", "clipped_ratio", "Tokens of the last step that the loss clipped, of all."),
    Shown("trust_masked", "trust_masked_ratio", "Tokens of the last step corrected to 0, of all."),
    Shown("clamped", "clamped_ratio", "Tokens of the last step with a clamped log r, of all."),
    Shown("entropy", "entropy_nats", "Mean entropy where the last step's tokens were drawn."),
    Shown("ce_loss", "imitation_nats", "Mean -log p of the last step's tokens that were imitated."),
    Shown("kl_loss", "distillation_nats", "Mean divergence from the teacher, of the last step."),
    Shown("kl_term", "kl_term_nats", "Mean of `objective.kl` in the last step, as it was added."),
    Shown("grad_norm", "grad_norm", "Norm of the last step's gradient, before it was clipped."),
    Shown("learning_rate", "learning_rate", "Of the last step."),
)
SHOWN_BY_LAG = (
    Shown("mismatch_k3", "mismatch_k3_by_lag_nats", "As mismatch_k3, of the tokens of such lag."),
    Shown("drift_k3", "drift_k3_by_lag_nats", "As drift_k3, of the tokens of such lag."),
    Shown("ess", "ess_by_lag_ratio", "As ess, of the tokens of such lag."),
    Shown("clipped", "clipped_by_lag_ratio", "As clipped, of the tokens of such lag."),
    Shown("trust_masked", "trust_masked_by_lag_ratio", "As trust_masked, of such lag."),
)


class Numbers:
    """What was trained, what was refused and why, and where the seconds went."""

    def __init__(self, metrics: Metrics, *, shadows: Sequence[str] = ()) -> None:
        """`shadows` are the names of the scorers that only watch."""
        self.clock = Clock(metrics, causes=CAUSES)
        self.steps = metrics.counter("steps", "Optimizer steps taken.")
        self.skipped_steps = metrics.counter(
            "skipped_steps",
            "Steps not taken: their gradient was not finite, or no token was inside the loss.",
        )
        self.groups = metrics.counter("groups", "Groups trained.")
        self.zero_signal = metrics.counter(
            "zero_signal_groups", "Groups judged whose outcomes were all alike."
        )
        self.members = metrics.counter("members", "Members trained.")
        self.spanning = metrics.counter(
            "spanning_members", "Members trained whose tokens are of several versions."
        )
        self.tokens = metrics.counter("tokens", "Tokens trained.")
        self.imitated = metrics.counter("imitated_tokens", "Tokens of examples that were imitated.")
        self.distilled = metrics.counter("distilled_tokens", "Tokens trained on a teacher's word.")
        self.lags = metrics.counter_by(
            "lag_tokens", "Tokens that were trained, by their lag.", steps=LAGS
        )
        self._declare_refusals(metrics)
        self._declare_files(metrics)
        self.shown = {one.key: metrics.gauge(one.noun, one.text) for one in SHOWN}
        self.by_lag = {
            one.key: metrics.gauge_by(one.noun, one.text, steps=LAG_BUCKETS) for one in SHOWN_BY_LAG
        }
        self.rewards = metrics.curve("reward")
        self._declare_held_out(metrics)
        self.least_share = metrics.gauge_by(
            "least_share_ratio",
            "Share of the trained members over share of the sampled ones, of the task or length "
            "for which that is least; 1 is fair.",
            by=BYS,
        )

        self.suspected = Suspected(metrics, shadows)

    def _declare_refusals(self, metrics: Metrics) -> None:
        self.refused_members = metrics.counter_by(
            "refused_members", "Members refused whole.", reason=REASONS
        )
        self.refused_lengths = metrics.counter_by(
            "refused_by_length_members",
            "Members refused whole, by the length of their completion: up to so many tokens.",
            reason=COMMON,
            tokens=BUCKETS,
        )
        self.refused_tokens = metrics.counter_by(
            "refused_tokens", "Tokens not trained.", reason=REASONS
        )

    def _declare_held_out(self, metrics: Metrics) -> None:
        self.held_out_curve = metrics.curve("held_out")
        self.held_out = metrics.gauge_by(
            "held_out_ratio",
            "Of the last evaluation: mean outcome of samples, of greedy answers, and the share of "
            "held-out prompts that any sample got right; 0 before the first.",
            kind=("sampled", "greedy", "passed"),
        )

    def evaluated(self, point: Point) -> None:
        """An evaluation is complete."""
        self.held_out_curve.add(point.version, point.sampled)
        values = {"sampled": point.sampled, "greedy": point.greedy, "passed": point.passed}
        for kind, value in values.items():
            self.held_out.labels(kind=kind).set(value)

    def checkpointed(self, part: str, seconds: float) -> None:
        """A part of a checkpoint is done; called by the thread that writes, too."""
        self.checkpoint_seconds.labels(part=part).set(seconds)

    def _declare_files(self, metrics: Metrics) -> None:
        self.checkpoint_seconds = metrics.gauge_by(
            "checkpoint_seconds",
            "Of the last checkpoint: for how long training waited for the one before, and for the "
            "copy; and how long the copy was then written for, beside training.",
            part=PARTS,
        )
        self.sink_missed = metrics.counter_by(
            "sink_missed_lines", "Lines of metrics.jsonl that a sink did not take.", sink=[*SINKS]
        )
        self.folder: Path | None = None
        free = metrics.gauge("disk_free_bytes", "Left on the disk of the run's folder.")
        free.set_function(self._disk_free)

    def observe(self, line: Mapping[str, Any]) -> None:
        """One step, as metrics.jsonl has it."""
        (self.steps if line["finite"] else self.skipped_steps).inc()
        if line["finite"]:
            self._trained(line)
        self.zero_signal.inc(line["zero_signal_groups"])
        for reason, members in line["refused"].items():
            self.refused_members.labels(reason=reason).inc(members)
        for reason, length, members in line["refused_lengths"]:
            self.refused_lengths.labels(reason=reason, tokens=length).inc(members)
        for reason, tokens in line["refused_tokens"].items():
            self.refused_tokens.labels(reason=reason).inc(tokens)
        for key in self.shown:
            self.shown[key].set(line[key])
        for bucket, key in product(LAG_BUCKETS, self.by_lag):
            value = line["by_lag"].get(bucket, {}).get(key, math.nan)  # not 0, which would be a lie
            self.by_lag[key].labels(steps=bucket).set(value)
        for by in BYS:
            self.least_share.labels(by=by).set(line["least_share"][by])
        self.rewards.add(line["step"], line["reward"])
        self.suspected.observe(line)

    def _disk_free(self) -> float:
        """Not a number until the folder is known."""
        return disk.free_bytes(self.folder) if self.folder else math.nan

    def _trained(self, line: Mapping[str, Any]) -> None:
        self.groups.inc(line["groups"])
        self.members.inc(line["members"])
        self.spanning.inc(line["members_spanning"])
        self.tokens.inc(line["tokens"])
        self.imitated.inc(line["imitated_tokens"])
        self.distilled.inc(line["distilled_tokens"])
        for lag, tokens in line["lag_tokens"]:
            self.lags.labels(steps=str(lag) if lag < len(LAGS) - 1 else "more").inc(tokens)

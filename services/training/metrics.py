"""The numbers of the training process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.metrics import Clock, Metrics


class Numbers:
    """What was trained, what was refused and why, and where the seconds went."""

    def __init__(self, metrics: Metrics) -> None:
        self.clock = Clock(metrics)
        self.steps = metrics.counter("steps", "Optimizer steps taken.")
        self.skipped_steps = metrics.counter(
            "skipped_steps",
            "Steps not taken: their gradient was not finite, or no token was inside the loss.",
        )
        self.members = metrics.counter("members", "Members trained.")
        self.tokens = metrics.counter("tokens", "Tokens trained.")
        self.refused_members = metrics.counter(
            "refused_members", "Members refused whole.", "reason"
        )
        self.refused_lengths = metrics.counter(
            "refused_by_length_members",
            "Members refused whole, by the length of their completion: up to so many tokens.",
            "reason",
            "tokens",
        )
        self.refused_tokens = metrics.counter("refused_tokens", "Tokens not trained.", "reason")
        self.reward = metrics.gauge("reward", "Mean reward of the groups of the last step.")
        self.lag_mean = metrics.gauge("lag_mean_steps", "Mean lag of the tokens of the last step.")
        self.lag_max = metrics.gauge("lag_max_steps", "Largest lag of a token of the last step.")
        self.learning_rate = metrics.gauge("learning_rate", "Of the last step.")

    def observe(self, line: Mapping[str, Any]) -> None:
        """One step, as metrics.jsonl has it."""
        (self.steps if line["finite"] else self.skipped_steps).inc()
        if line["finite"]:
            self.members.inc(line["members"])
            self.tokens.inc(line["tokens"])
        for reason, members in line["refused"].items():
            self.refused_members.labels(reason=reason).inc(members)
        for reason, length, members in line["refused_lengths"]:
            self.refused_lengths.labels(reason=reason, tokens=length).inc(members)
        for reason, tokens in line["refused_tokens"].items():
            self.refused_tokens.labels(reason=reason).inc(tokens)
        self.reward.set(line["reward"])
        self.lag_mean.set(line["lag_mean"])
        self.lag_max.set(line["lag_max"])
        self.learning_rate.set(line["learning_rate"])

"""Whether a run fits: into its server, its data, its model and itself. Pure; told before it starts.

What can never go on is refused, what only makes it less than it asks for is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import ConfigError
from pipeline.run import Run, Spec

ADMISSION_SHARE = 0.75
"""Of the server's memory: beyond it nothing is admitted."""
TOKEN_BYTES = 8
"""Of an id and its log-prob."""
KEPT_BYTES = 4
"""Of one more id that could have been drawn."""


def check_memory(run: Run, limit_bytes: int) -> str | None:
    """What the server's memory, 0 for no limit, will slow down; None where nothing is amiss.

    Raises ConfigError where one step's groups may not fit while they wait for each other: then
    nothing is admitted, and nothing is ever trained to make room.
    """
    room = ADMISSION_SHARE * limit_bytes
    token = TOKEN_BYTES + KEPT_BYTES * run.sampling.top_k
    group = run.groups.members * run.sampling.max_tokens * token
    if not limit_bytes or run.window * group <= room:
        return None
    if run.groups.per_step * group <= room:
        return (
            f"a window of {run.window} groups may take {_mb(run.window * group)} at their longest,"
            f" and beyond {_mb(room)} of the server's memory none is admitted: prompts may wait"
        )
    raise ConfigError(
        "maxmemory of the server",
        limit_bytes,
        rule=f"the {run.groups.per_step} groups of one step may take"
        f" {_mb(run.groups.per_step * group)} at their longest, and beyond 75 % of it nothing is"
        " admitted, so that a step may never be full",
        remedy="raise it, or lower sampling.max_tokens, groups.members or groups.per_step",
    )


def drawbacks(run: Run, *, examples: int, context: int | None) -> Iterator[str]:
    """What makes the run less than it asks for: one sentence each, with the keys at fault."""
    groups, wanted = examples * run.prompting.epochs, run.steps * run.groups.per_step
    if groups < wanted:
        yield (
            f"data: {examples} examples in {run.prompting.epochs} epochs are {groups} groups, and"
            f" {run.steps} steps want {wanted}: the run ends with its data"
        )
    if run.objective.distillation is None and any(map(_is_teacher, run.scoring.scorers)):
        yield (
            "scoring.scorers: there is a teacher, and nothing is learnt from it without"
            " [objective.distillation]"
        )
    if run.up.inference > run.window:
        yield (
            f"up.inference = {run.up.inference}: engines share a window of {run.window} groups,"
            " so that some have nothing to do"
        )
    if context is not None and run.sampling.max_tokens >= context:
        yield (
            f"sampling.max_tokens = {run.sampling.max_tokens}: the model's context holds {context}"
            " tokens, prompt and completion together, and cuts them before"
        )
    if run.groups.deadline_seconds < run.scoring.timeout_seconds:
        yield (
            f"groups.deadline_seconds = {run.groups.deadline_seconds:g}: a group may expire while"
            f" its last answer is scored (scoring.timeout_seconds ="
            f" {run.scoring.timeout_seconds:g})"
        )


def _is_teacher(spec: Spec) -> bool:
    return (spec if isinstance(spec, str) else spec.get("use")) == "teacher"


def _mb(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"

"""Whether a run fits: into its server, its data, its model and itself. Pure; told before it starts.

What can never go on is refused, what only makes it less than it asks for is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.errors import ConfigError
from pipeline.families import ALONE, SCORERS, TEACHING
from pipeline.run import Run, Spec
from pipeline.verdicts import AT, Term, terms

ADMISSION_SHARE = 0.75
"""Of the server's memory: beyond it nothing is admitted."""
VERSIONS = 3
"""Of the weights, where they travel through the server: the newest two, and one that is sent."""
TOKEN_BYTES = 8
"""Of an id and its log-prob."""
KEPT_BYTES = 4
"""Of one more id that could have been drawn."""


def check_memory(run: Run, limit_bytes: int, *, version_bytes: int = 0) -> str | None:
    """What the server's memory, 0 for no limit, will slow down; None where nothing is amiss.

    Raises ConfigError where one step's groups may not fit while they wait for each other: then
    nothing is admitted, and nothing is ever trained to make room. A version of the weights takes
    `version_bytes` there, and there may be VERSIONS of them.
    """
    weights = VERSIONS * version_bytes
    room = ADMISSION_SHARE * limit_bytes - weights
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
        f" {_mb(run.groups.per_step * group)} at their longest{_besides(weights)}, and beyond 75 %"
        " of it nothing is admitted, so that a step may never be full",
        remedy="raise it, or lower sampling.max_tokens, groups.members or groups.per_step"
        + (", or have the weights travel another way" if weights else ""),
    )


def check_rewards(run: Run) -> None:
    """Raises ConfigError for a penalty that every answer would get, and for a reward below 0 where
    the advantage is for none such.

    What a scorer of the user's own gives is not known before it does.
    """
    advantage, longest = run.objective.advantage, run.sampling.max_tokens
    for number, term in enumerate(terms(run.scoring.scorers)):
        at, name = f"{AT}[{number}]", _name(term.spec)
        cache = term.spec.get("cache") if isinstance(term.spec, dict) else None
        if name == "overlong" and isinstance(cache, int) and cache > longest:
            rule = f"even an empty answer is penalised: sampling.max_tokens is {longest}"
            raise ConfigError(f"{at}.cache", cache, rule=rule, remedy=f"give {longest} at most")
        if _name(advantage) == "max_rl" and _may_take(name, term):
            rule = f"can make a reward negative (weight {term.weight:g}), and max_rl is for none"
            remedy = "leave it out, or choose another objective.advantage"
            raise ConfigError(at, name, rule=rule, remedy=remedy)


def _may_take(name: str, term: Term) -> bool:
    """Whether something below 0 may be added for it; most that grade give 0 or more."""
    if term.is_gate or term.is_shadow or name not in SCORERS or name == TEACHING:
        return False
    if name in ("kl_penalty", "reward_model"):
        return term.weight != 0
    return term.weight > 0 if name == "overlong" else term.weight < 0


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
    if run.objective.distillation and not any(map(_may_teach, run.scoring.scorers)):
        yield (
            "objective.distillation: no scorer is a teacher, so that nothing is distilled; name one"
            " in scoring.scorers"
        )
    if run.up.inference > run.window:
        yield (
            f"up.inference = {run.up.inference}: engines share a window of {run.window} groups,"
            " so that some have nothing to do"
        )
    if run.evaluation and run.evaluation.meanwhile and _name(run.inference.engine) in ALONE:
        yield (
            f"evaluation.meanwhile: the engine {_name(run.inference.engine)} holds one version at a"
            " time, so that held-out answers are graded after training, on weights kept on disk"
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
    return _name(spec) == "teacher"


def _may_teach(spec: Spec) -> bool:
    """One of the user's own may."""
    return _is_teacher(spec) or ":" in _name(spec)


def _name(spec: Spec) -> str:
    return spec if isinstance(spec, str) else str(spec.get("use", ""))


def _besides(weights: int) -> str:
    return f", {VERSIONS} versions of the weights {_mb(weights)}" if weights else ""


def _mb(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"

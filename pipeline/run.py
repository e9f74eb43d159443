"""The whole of RUN.toml as Structs: every key, its unit, its range and its default.

The line under a field is its documentation; `docs/configuration.md` is made from it. Rules that
join several keys stand in `__post_init__`. Nothing here reads a file: see `config.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

RUNS = Path("runs")
ENDED = "ended"
"""The file in a run's folder that says that nothing goes on there."""

Spec = str | dict[str, Any]
"""A plug-in: its name, or `{ use = "name", option = value }`, or `use = "package.module:thing"`."""

STEPPING = ("betas", "weight_decay", "clip_norm")
"""Options of every back end that say what a step is; the others, what it is made with."""
ASKING = ("concurrency", "timeout_seconds", "golden", "golden_minutes")
"""What a scorer's table has that no verdict depends on."""

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections share: no key is ignored."""


class Bus(Section, frozen=True, kw_only=True):
    """[bus]: where the services meet."""

    url: str = ""
    """redis://, rediss:// or unix://. Empty: --redis, $SLUICE_REDIS, or one that `up` starts. In a
    file of its own the password is `?password_file=PATH`."""
    lease_seconds: Annotated[float, Meta(ge=5)] = 15.0
    """A process silent for so long is taken for dead, and its work is given to others."""


class Model(Section, frozen=True, kw_only=True):
    """[model]: the policy before its first step."""

    path: str
    """A folder in Hugging Face format, or a name that transformers can load."""
    template: str = ""
    """A jinja file or `own` (the tokenizer's) for all prompts. Empty: `own` for chats, and texts
    stay as they are."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters, in the engine and on the way there."""
    adapter: Spec | None = None
    """What is trained instead of all parameters, and is all that travels: lora."""


class Prompting(Section, frozen=True, kw_only=True):
    """[prompting]: how the data set is walked."""

    epochs: Positive = 1
    """Passes over the data, each in its own seeded order; the run ends with them at the latest."""


class Groups(Section, frozen=True, kw_only=True):
    """[groups]: attempts at one prompt, and how many prompts make a step."""

    members: Annotated[int, Meta(ge=1, le=4096)] = 8
    """Attempts at one prompt; two at least where the advantage compares them."""
    per_step: Positive = 16
    """Groups in one optimizer step."""
    deadline_seconds: Seconds = 600.0
    """From a group's first delivered member on; then it is trained with the members that have a
    score, if these are enough, and ends as `expired` otherwise."""
    enough: Count = 0
    """Scored members with which a group is trained at its deadline, 2 at least; 0: all of them."""

    release: Count = 0
    """Scored members with which a group is whole at once, 2 at least: the rest of `members` are
    dropped as `surplus`; 0: it waits for all. The fastest come first, so short answers and
    whatever earns them are over-represented: the mean reward of what is trained is no estimate of
    the policy's. Where length and reward go together, leave it at 0; nothing corrects for it."""

    def __post_init__(self) -> None:
        """Raises ValueError for a number of members that could not be compared, or is no part."""
        if self.release and not 2 <= self.release < self.members:
            raise ValueError(
                f"release ({self.release}) must lie between 2 and members - 1, or be 0"
            )
        if self.enough and not min(2, self.members) <= self.enough <= self.members:
            raise ValueError(f"enough ({self.enough}) must lie between 2 and members, or be 0")


class Sampling(Section, frozen=True, kw_only=True):
    """[sampling]: how members are sampled."""

    temperature: Annotated[float, Meta(gt=0)] = 1.0
    """Divides the logits, in the engine and in the trainer alike."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Only the likeliest tokens that have this much probability together are drawn; 1 is off."""
    top_k: Annotated[int, Meta(ge=0, le=2147483647)] = 0
    """Only so many of the likeliest tokens are drawn; 0 is off."""
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Only tokens with this share of the likeliest one's probability are drawn; 0 is off."""
    max_tokens: Positive = 256
    """Tokens of one completion at most; clamped to the room that the model's context leaves."""


class Control(Section, frozen=True, kw_only=True):
    """[lag.control]: the window follows what lag does to the steps; without this section it is
    always `lag.max` + 1 steps of groups."""

    measure: Literal["ess", "mismatch_k3"] = "ess"
    """Of each step's tokens, averaged over as many steps as the window holds: the effective sample
    size, of which more is better, or the mismatch, of which less is."""
    target: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Worse than this the window shrinks by a quarter; better, it grows by a step's groups."""
    least: Positive = 1
    """Steps of groups that may be alive in any case; `lag.max` + 1 is the most."""

    def __post_init__(self) -> None:
        """Raises ValueError for a share where nats are meant."""
        if self.measure == "mismatch_k3" and self.target > 0.5:
            raise ValueError(f"target ({self.target}) is in nats for mismatch_k3: give 0.01, or so")


class Lag(Section, frozen=True, kw_only=True):
    """[lag]: how old a token may be when it is trained."""

    max: Count = 2
    """Optimizer steps between the weights that sampled a token and those that it updates."""
    unit: Literal["sample", "token", "mean"] = "token"
    """What is refused beyond that: just the stale tokens (token), the whole member of one (sample),
    or a member whose tokens lag more than that on average (mean)."""
    pace: Literal["hold", "refuse"] = "hold"
    """Before a step that would leave an older group without a seat in time: wait for that group
    (hold), so that slow prompts are not starved, or let it grow too old and refuse it."""
    hold_seconds: Seconds = 600.0
    """How long one step waits so at most."""
    control: Control | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a least window above the largest."""
        if self.control and self.control.least > self.max + 1:
            raise ValueError(f"control.least ({self.control.least}) is above max + 1: lower it")


class MaxAge(Section, frozen=True, kw_only=True):
    """`{ max_age = N }`: a flip that spares young caches."""

    max_age: Count


Swap = Literal["keep", "recompute", "drain"] | MaxAge


class Inference(Section, frozen=True, kw_only=True):
    """[inference]: the engines."""

    engine: Spec = "hf"
    """The engine: hf, vllm, fake."""
    swap: Swap = "keep"
    """Sequences in flight at a flip go on with their KV cache (keep) or with one made anew
    (recompute), the latter only where it has tokens more than N versions old (`{ max_age = N }`);
    or they are finished first, and none is begun meanwhile (drain)."""
    canary_every: Count = 10
    """Flips, from the first on, of which one is examined: the engine scores a short fixed prompt,
    and the trainer's own log-probs of it are the measure; 0: none."""
    canary_gap: Annotated[float, Meta(gt=0)] | None = None
    """Nats by which one of these log-probs may differ. Beyond it the flip is undone, and after the
    second time the engine is quarantined. Left out: 0.001, or 1 where either side computes in
    bfloat16."""
    endpoint: Count = 0
    """Sequences of others' requests that an engine samples at once, beside the run's own: at most
    half of its slots. It answers them as OpenAI's API does, at /v1 of the process's `--http`
    address. 0: no endpoint."""


class Scoring(Section, frozen=True, kw_only=True):
    """[scoring]: the reward."""

    scorers: Annotated[list[Spec], Meta(min_length=1)] = field(default_factory=lambda: ["exact"])
    """exact, regex, choice, numeric, json_schema, format, math, code, reward_model, judge, http,
    reasoning_gym, teacher, kl_penalty, overlong (docs/scorers.md); added up, each times its
    `weight`, and 0 where one with `gate = true` gives 0. The first that is no gate gives the
    outcome, so overlong and kl_penalty stand behind one that grades. One with `shadow = true` only
    watches. Beside `use` may stand `concurrency`, `timeout_seconds`, and `golden`, a file of
    answers whose verdicts are known, which are asked for before the first work, and again every
    `golden_minutes` (10)."""
    workers: Positive = 1
    """Processes that run scorers which are plain functions."""
    timeout_seconds: Seconds = 10.0
    """For one try of one scorer, unless it has its own: an answer that takes longer counts as
    scorer_error, and its worker is replaced. Where a scorer waits for something outside, it is
    tried again first."""
    retries: Count = 3
    """How often a scorer is asked again for an answer whose fault may pass (HTTP 429 or 5xx, no
    connection, a time-out), with growing pauses; then the answer counts as scorer_error."""


class Imitation(Section, frozen=True, kw_only=True):
    """[objective.imitation]: answers that are given, learnt by cross-entropy in every step (SFT
    replay)."""

    data: Spec
    """A data set whose references are the texts to imitate."""
    per_step: Positive = 4
    """Examples in one step."""
    coefficient: Annotated[float, Meta(gt=0)] = 1.0
    """Of the mean cross-entropy of their tokens, at temperature 1; the policy gradient's is 1."""


class Distillation(Section, frozen=True, kw_only=True):
    """[objective.distillation]: what a teacher among the scorers says of every token is learnt."""

    coefficient: Annotated[float, Meta(gt=0)] = 1.0
    """Of the mean over their tokens; the policy gradient's is 1."""


class Reference(Section, frozen=True, kw_only=True):
    """[objective.reference]: the frozen model that `objective.kl` is taken to."""

    path: str = ""
    """Of the same architecture as the policy. Empty: the policy before its first step."""
    every: Count = 0
    """Optimizer steps after which it becomes the policy of that step; 0: never."""


class Objective(Section, frozen=True, kw_only=True):
    """[objective]: from rewards to a gradient."""

    advantage: Spec = "grpo"
    """Rewards of a group to advantages: grpo, dr_grpo, rloo, reinforce_pp_baseline, max_rl (rewards
    of 0 or more); for groups of one ema (R - the task's running mean) and none (R)."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """What a token weighs: as any other of the step (token); so that each member weighs the same
    (sequence); or 1/(groups x members x max_tokens), whatever the lengths (constant)."""
    truncated: Literal["keep", "zero", "mask"] = "keep"
    """Members cut off at max_tokens: as graded (keep); reward and outcome 0, which moves the mean
    of their group (zero); or in the mean as graded, but outside the loss (mask)."""
    zero_signal: Literal["drop", "keep"] = "drop"
    """Groups whose outcomes are all alike, whatever shaped the reward: replaced while the data
    lasts (drop), or part of the step (keep)."""
    loss: Spec = "cispo"
    """Loss of a token: cispo, ppo, gspo, topr, tis_pg, kimi, dppo_tv, ipo, sapo, m2po, rollout_is,
    reinforce."""
    anchor: Literal["behaviour", "proximal", "interpolated"] = "behaviour"
    """What the loss takes its ratio to: the policy that sampled the token; the trainer's own before
    the step, and then a correction accounts for the gap between the two; or one between them, the
    nearer to the trainer's the later the token (decoupled ppo)."""
    correction: Spec | list[Spec] = "none"
    """Weight of a token for that gap: none, tis, icepop, mask_geometric, mask_k, opsm, decoupled;
    or a list, of which the weights are multiplied."""
    normalise: bool = False
    """Whether a correction's weights are scaled to a mean of 1, over the tokens of the step that it
    leaves in."""
    kl: Spec | None = None
    """A term that keeps the policy near the reference model, with its `coefficient`: k2, k3."""
    reference: Reference = field(default_factory=Reference)
    imitation: Imitation | None = None
    distillation: Distillation | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a reference model that nothing asks for."""
        if self.kl is None and self.reference != Reference():
            raise ValueError("reference is for objective.kl, which is not set: add it, or leave it")


class Training(Section, frozen=True, kw_only=True):
    """[training]: the optimizer."""

    backend: Spec = "torch"
    """What holds the model and the optimizer: torch (one process), deepspeed (any number)."""
    learning_rate: Annotated[float, Meta(ge=0)] = 1e-6
    """Of AdamW, after the warm-up."""
    warmup_steps: Count = 5
    """Steps over which the learning rate rises linearly."""
    pack_tokens: Positive = 2048
    """Tokens in one row of a forward pass at most; a longer sequence has a row of its own."""
    checkpoint_every: Positive = 10
    """Batches between two checkpoints; a trainer that starts again replays those since the last."""
    checkpoints_kept: Positive = 2
    """The newest that stay, beside the best by its evaluation."""
    record: Literal["on", "off"] = "on"
    """Whether what each step consumed is kept on disk, to be replayed. Off saves that disk: a
    trainer that starts again loses the steps since the newest checkpoint, and says how many."""
    sinks: list[Spec] = field(default_factory=lambda: [])
    """Where each line of metrics.jsonl goes besides: tensorboard, wandb."""


class Evaluation(Section, frozen=True, kw_only=True):
    """[evaluation]: held-out prompts, graded by version, while the run goes on and after it."""

    data: Spec
    """The held-out data set."""
    every: Positive = 10
    """Versions between two that are graded; the first and the last always are."""
    members: Annotated[int, Meta(ge=1, le=4096)] = 4
    """Samples of each prompt, beside one greedy answer."""
    meanwhile: bool = True
    """Whether the run's engines answer them beside their work: each keeps the weights of such a
    version in memory until its evaluation is over. What is not graded then is after training, on
    weights that are kept on disk."""


Service = Literal["training", "inference", "scoring", "prompting"]


class Up(Section, frozen=True, kw_only=True):
    """[up]: what `sluice up` starts on this machine."""

    inference: Positive = 1
    """Engines."""
    scoring: Positive = 1
    """Scoring processes."""
    ranks: Positive = 1
    """Processes that are one trainer; more than one need a back end that knows of them, as
    `deepspeed` does."""
    restarts: Count = 3
    """How often one process may die before the run fails."""
    python: dict[Service, str] = {}
    """The interpreters of services that need another environment than this one, by service:
    training, inference (it grades as well), scoring, prompting. Each needs Sluice, too."""


class Run(Section, frozen=True, kw_only=True):
    """A run, from its first prompt to its last step."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Of the run: its folder under runs/, and its keys in Redis."""
    steps: Positive
    """Batches after which the run is done: optimizer steps, with those skipped or undone."""
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Of the order of the data and of every member's noise."""
    weights: Spec = "shm"
    """How new weights travel: shm (one machine), files (a `folder` that all machines share, or a
    URL that fsspec has a driver for, such as s3://BUCKET/PREFIX), redis (through the run's own
    server), or into the memory of vLLM's engines: nccl, and ipc on one GPU. With `whole_every = 20`
    files and redis carry all of a version every 20th time, otherwise what changed since the one
    before, to the bit."""
    model: Model
    data: Spec
    """The data set: jsonl, parquet, hf, reasoning_gym."""
    prompting: Prompting = field(default_factory=Prompting)
    groups: Groups = field(default_factory=Groups)
    sampling: Sampling = field(default_factory=Sampling)
    lag: Lag = field(default_factory=Lag)
    inference: Inference = field(default_factory=Inference)
    scoring: Scoring = field(default_factory=Scoring)
    objective: Objective = field(default_factory=Objective)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation | None = None
    bus: Bus = field(default_factory=Bus)
    up: Up = field(default_factory=Up)

    def __post_init__(self) -> None:
        """Raises ValueError for groups of one that nothing is learnt from."""
        distils = self.objective.distillation is not None
        if self.groups.members == 1 and not distils and _compares(self.objective.advantage):
            raise ValueError("groups.members is 1, and objective.advantage compares members")

    @property
    def folder(self) -> Path:
        """Where the run keeps its files, below the folder from which it was started."""
        return RUNS / self.name

    @property
    def window(self) -> int:
        """Groups that may be alive at once: as many as can be trained before they are too old."""
        return (self.lag.max + 1) * self.groups.per_step

    @property
    def identity(self) -> dict[str, str]:
        """What must not differ between the processes of a run, or when it goes on.

        All that shapes what is sampled, scored and learnt. Not the data, whose digest prompting
        adds; nor what it is done with: machines, engines, packs, ranks, time limits, and the back
        end but for how it steps.
        """
        sections = {
            name: msgspec.to_builtins(getattr(self, name))
            for name in ("model", "prompting", "groups", "sampling", "objective")
        }
        parts = {f"{name}.{k}": v for name, keys in sections.items() for k, v in keys.items()}
        del parts["groups.deadline_seconds"]
        parts |= {
            "seed": self.seed,
            "lag.max": self.lag.max,
            "lag.unit": self.lag.unit,
            "scoring.scorers": [_judging(spec) for spec in self.scoring.scorers],
            "training.learning_rate": self.training.learning_rate,
            "training.warmup_steps": self.training.warmup_steps,
            "training.backend": _of_steps(self.training.backend),
            "bus.lease_seconds": self.bus.lease_seconds,
        }
        return {key: v if isinstance(v, str) else _json(v) for key, v in parts.items()}


def _name(spec: Spec) -> str:
    return spec if isinstance(spec, str) else str(spec.get("use", ""))


def _judging(spec: Spec) -> Spec:
    """A scorer without what says how it is asked, and how it is watched."""
    if isinstance(spec, str):
        return spec
    kept = {key: value for key, value in spec.items() if key not in ASKING}
    return str(kept["use"]) if [*kept] == ["use"] else kept


def _of_steps(backend: Spec) -> dict[str, Any]:
    """Those of its options that shape what is learnt."""
    options = {} if isinstance(backend, str) else backend
    return {key: options[key] for key in STEPPING if key in options}


def _compares(advantage: Spec) -> bool:
    """Whether a member alone has no advantage; of a user's own that is not known."""
    name = _name(advantage)
    return name not in ("none", "ema") and ":" not in name


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""A run of `sluice up` with made-up numbers, whose sums can be checked by hand."""

from __future__ import annotations

from pipeline.ledger import Sum
from pipeline.messages import Beat
from pipeline.run import Groups, Lag, Model, Run, Up
from pipeline.watch import Places, Seen, Snapshot, State
from services.view.journal import StepLine

RUN = Run(
    name="made",
    steps=2,
    model=Model(path="tiny"),
    data={"use": "jsonl", "path": "prompts.jsonl"},
    groups=Groups(members=4, per_step=2),
    lag=Lag(max=1),
    up=Up(inference=2, scoring=2),
)


def spent(busy: float, idle: float, other: float, wall: float) -> dict[str, float]:
    seconds = {"busy": busy, "idle": idle, "other": other}
    named = {f'loop_seconds{{activity="{name}"}}': value for name, value in seconds.items()}
    return named | {"wall_seconds": wall}


def engine(boot: str, tokens: float, step: float, *, pid: int, **rest: float) -> Seen:
    totals = {"tokens": tokens, "flips": 1.0} | spent(6.0, 1.0, 1.0, 8.0)
    gauges = {"decode_step_seconds": step, "swap_pause_seconds": float("nan")} | rest
    instance = boot.partition(":")[0]
    beat = Beat(
        service="inference",
        instance=instance,
        boot=boot,
        pid=pid,
        version=2,
        totals=totals,
        gauges=gauges,
    )
    return Seen(beat=beat, age_seconds=1.0, held=3)


TRAINER = Seen(
    beat=Beat(
        service="training",
        instance="training-0",
        boot="training-0:a",
        version=2,
        waiting_for="groups",
        totals={
            "steps": 2.0,
            'refused_members{reason="stale"}': 3.0,
            'refused_members{reason="orphan"}': 0.0,
            'lag_tokens{steps="0"}': 400.0,
            'lag_tokens{steps="1"}': 300.0,
            'lag_tokens{steps="2"}': 0.0,
            'lag_tokens{steps="more"}': 0.0,
            'idle_seconds{cause="groups"}': 1.5,
            'idle_seconds{cause="older groups to be done"}': 0.5,
        }
        | spent(7.0, 2.0, 0.5, 10.0),
        gauges={"reward": 0.75, "lag_mean_steps": 0.9, "lag_max_steps": 1.0},
        curves={"reward": ((1.0, 0.25), (2.0, 0.75))},
    ),
    age_seconds=0.5,
)

BEATS = (
    TRAINER,
    engine("inference-0:a", 400.0, 0.002, pid=1, swap_pause_seconds=0.001),
    engine("inference-0:b", 300.0, 0.004, pid=2),  # the same instance after a restart
    engine("inference-1:a", 300.0, 0.006, pid=3, swap_pause_seconds=0.003),
)

LEDGER = {
    "generated": Sum(20, 1000),
    "trained": Sum(12, 700),
    "zero_signal": Sum(4, 200),
    "stale": Sum(2, 50),
    "scorer_error": Sum(1, 10),
    "cancelled": Sum(1, 40),
}

LINES = (
    StepLine(
        step=1,
        seconds=4.0,
        reward=0.25,
        members=8,
        members_spanning=1,
        tokens=300,
        lag_mean=0.0,
        lag_max=0.0,
        lag_tokens=((0, 300),),
        generated_tokens=400,
        mismatch_k3=0.001,
        engine_k3=0.001,
        ess=1.0,
    ),
    StepLine(
        step=2,
        seconds=9.0,
        reward=0.75,
        members=8,
        members_spanning=3,
        tokens=600,
        lag_mean=0.9,
        lag_max=1.0,
        lag_tokens=((0, 60), (1, 540)),
        generated_tokens=1000,
        mismatch_k3=0.004,
        engine_k3=0.0025,
        drift_k3=0.003,
        ess=0.7,
        refused={"stale": 2},
    ),
)


def snapshot(*, ledger: dict[str, Sum] = LEDGER, places: Places | None = None) -> Snapshot:
    return Snapshot(
        state=State(step=2, version=2, epoch=1, batch=2, stop="done"),
        places=places or Places(),
        ledger=ledger,
        window=4,
        per_step=2,
        lag_max=1,
        lease_seconds=15.0,
        beats=BEATS,
    )

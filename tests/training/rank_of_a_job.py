"""One rank of a job, for `rank_forks`, in the environment that torchrun makes.

Rank 0 says `ready`, and then `step` after each step, with a pause of so many seconds.
"""

import sys
import time

import torch.distributed as dist
from made import tiny_model
from rank_cases import CASES, act
from torch import Tensor

from pipeline.protocols import StepResult, Tokens
from pipeline.run import Bus, Model, Run, Training
from pipeline.serve import exit_code
from services.training.backends.torch import TorchBackend
from services.training.losses import cispo
from services.training.objective import Objective
from services.training.ranks import follow, lead
from services.training.world import join


class Summing(TorchBackend):
    """The plainest back end of many ranks."""

    def step(self, learning_rate: float) -> StepResult:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        return super().step(learning_rate)


def failing(tokens: Tokens) -> Tensor:
    """Where the tokens are rank 1's."""
    if 1 in tokens.sequence:
        raise ValueError("a mistake\nof the user's")
    return cispo(tokens)


LOSSES = {"cispo": cispo, "failing": failing}


def become(loss: str, pause_seconds: float) -> None:
    """Ends the process, as a service ends."""
    sys.exit(exit_code(lambda: _work(loss, pause_seconds)))


def _work(loss: str, pause_seconds: float) -> None:
    rank, objective = Summing(tiny_model()), Objective(LOSSES[loss])
    run = Run(
        name="ranks",
        steps=1,
        model=Model(path="-"),
        data="-",
        training=Training(backend="job:Summing", pack_tokens=20),
        bus=Bus(lease_seconds=5),
    )
    if join().rank:
        follow(rank, objective, run, cargo=CASES["8 packs"].cargo())
        return
    team = lead(rank, objective, run, cargo=CASES["8 packs"].cargo())
    print("ready", flush=True)
    while True:
        act(team, CASES["8 packs"])
        print("step", flush=True)
        time.sleep(pause_seconds)

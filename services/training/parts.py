"""The parts of a trainer that RUN.toml chooses, for the service and for a replay. † torch"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from pipeline import messages, plugins
from pipeline.families import ADVANTAGES, BACKENDS
from pipeline.model.fingerprint import describe_all, frozen_parameters
from pipeline.model.load import DTYPES
from pipeline.model.policy import load_policy
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import Advantage, Rank, Snapshot
from pipeline.run import Run
from services.training.backends.rng import begin
from services.training.canary import prompt_of
from services.training.cargo import Cargo, Fetch
from services.training.objective import Objective, compose
from services.training.optimize import Optimizer, learning_rate
from services.training.packing import cost_of
from services.training.ranks import Leader, check, follow, lead
from services.training.reference import Referred, reference_of
from services.training.world import world


class Own(NamedTuple):
    """What each rank has: with its model's config, in transformers' words.

    `frozen` are the tensors that are never trained, as they would travel.
    """

    rank: Rank
    objective: Objective
    config: Any
    cargo: Cargo
    frozen: tuple[messages.Tensor, ...]


class Parts(NamedTuple):
    """What steps, and what a batch is judged, saved and published with; `canary` is its ids."""

    team: Leader
    optimizer: Optimizer
    advantage: Advantage
    tokenizer: Tokenizer
    frozen: tuple[messages.Tensor, ...]
    canary: tuple[int, ...]

    def save_model(self, folder: str) -> None:
        """A Hugging Face folder that can be loaded by itself; it must not exist yet."""
        self.team.save(folder)
        self.tokenizer.save(folder)

    def snapshot(self) -> Snapshot:
        """A copy of what a checkpoint holds."""
        return _WithTokenizer(self.team.snapshot(), self.tokenizer)


class _WithTokenizer(NamedTuple):
    """Implements `pipeline.protocols.Snapshot`: its model can be loaded by itself."""

    taken: Snapshot
    tokenizer: Tokenizer

    def fingerprint(self) -> str:
        return self.taken.fingerprint()

    def write(self, folder: str) -> None:
        self.taken.write(folder)
        self.tokenizer.save(str(Path(folder) / "model"))


def nothing(groups: Sequence[str]) -> list[messages.Group]:
    """What a replay reads from the bus."""
    raise AssertionError(f"{groups} are to be read, and there is no bus")


def assemble(run: Run, fetch: Fetch = nothing) -> Parts:
    """Rank 0's; `fetch` reads groups from the bus.

    Raises ConfigError for parts that cannot be had.
    """
    own = _own(run, fetch)
    team = lead(own.rank, own.objective, run, cargo=own.cargo, cost=cost_of(own.config))
    advantage: Advantage = plugins.build(
        ADVANTAGES, run.objective.advantage, at="objective.advantage"
    )
    training = run.training
    rate = partial(learning_rate, peak=training.learning_rate, warmup_steps=training.warmup_steps)
    optimizer = Optimizer(team.act, rate=rate)
    return Parts(
        team,
        optimizer,
        advantage,
        Tokenizer(run.model.path),
        frozen=own.frozen,
        canary=prompt_of(own.config, seed=run.seed),
    )


def assist(run: Run, fetch: Fetch = nothing) -> None:
    """All that a rank other than 0 does. Raises ConfigError as `assemble` does."""
    own = _own(run, fetch)
    follow(own.rank, own.objective, run, cargo=own.cargo)


def _own(run: Run, fetch: Fetch) -> Own:
    check(run)
    objective = compose(run)
    # The optimizer's own copy: in bfloat16 a small learning rate would be rounded away.
    model = load_policy(run.model, dtype="float32")
    frozen = describe_all(frozen_parameters(model), DTYPES[run.model.dtype])
    reference = reference_of(run, model)  # before a back end takes the model apart
    rank: Rank = plugins.make(BACKENDS, run.training.backend, model, at="training.backend")
    if reference is not None:
        rank, objective = Referred(rank, reference), replace(objective, refer=reference.filled)
    config = model.config.get_text_config()
    begin(run.seed, world().rank)  # last: nothing that was made for the rank has drawn since
    return Own(rank, objective, config, Cargo(fetch, vocabulary=int(config.vocab_size)), frozen)

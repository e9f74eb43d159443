"""The parts of a trainer that RUN.toml chooses, for the service and for a replay. † torch"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from pipeline import messages, plugins
from pipeline.model.fingerprint import describe_all, frozen_parameters
from pipeline.model.load import DTYPES
from pipeline.model.policy import load_policy
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import ADVANTAGES, BACKENDS, Advantage, Backend, Rank, Snapshot
from pipeline.run import Run
from services.training.objective import Objective, compose
from services.training.optimize import Optimizer, learning_rate
from services.training.packing import cost_of
from services.training.ranks import check, follow, lead
from services.training.reference import Referred, reference_of


class Own(NamedTuple):
    """What each rank has: with its model's config, in transformers' words.

    `frozen` are the tensors that are never trained, as they would travel.
    """

    rank: Rank
    objective: Objective
    config: Any
    frozen: tuple[messages.Tensor, ...]


class Parts(NamedTuple):
    """What steps, and what a batch is judged, saved and published with."""

    backend: Backend
    optimizer: Optimizer
    advantage: Advantage
    tokenizer: Tokenizer
    vocabulary: int
    frozen: tuple[messages.Tensor, ...]

    def save_model(self, folder: str) -> None:
        """A Hugging Face folder that can be loaded by itself; it must not exist yet."""
        self.backend.save(folder)
        self.tokenizer.save(folder)

    def snapshot(self) -> Snapshot:
        """A copy of what a checkpoint holds."""
        return _WithTokenizer(self.backend.snapshot(), self.tokenizer)


class _WithTokenizer(NamedTuple):
    """Implements `pipeline.protocols.Snapshot`: its model can be loaded by itself."""

    taken: Snapshot
    tokenizer: Tokenizer

    def fingerprint(self) -> str:
        return self.taken.fingerprint()

    def write(self, folder: str) -> None:
        self.taken.write(folder)
        self.tokenizer.save(str(Path(folder) / "model"))


def assemble(run: Run) -> Parts:
    """Rank 0's. Raises ConfigError for parts that cannot be had."""
    rank, objective, config, frozen = _own(run)
    backend, act = lead(rank, objective, run, cost=cost_of(config))
    advantage: Advantage = plugins.build(
        ADVANTAGES, run.objective.advantage, at="objective.advantage"
    )
    training = run.training
    rate = partial(learning_rate, peak=training.learning_rate, warmup_steps=training.warmup_steps)
    tokenizer = Tokenizer(run.model.path)
    optimizer, vocabulary = Optimizer(act, rate=rate), int(config.vocab_size)
    return Parts(backend, optimizer, advantage, tokenizer, vocabulary, frozen)


def assist(run: Run) -> None:
    """All that a rank other than 0 does. Raises ConfigError as `assemble` does."""
    own = _own(run)
    follow(own.rank, own.objective, run)


def _own(run: Run) -> Own:
    check(run)
    objective = compose(run)
    # The optimizer's own copy: in bfloat16 a small learning rate would be rounded away.
    model = load_policy(run.model, dtype="float32")
    frozen = describe_all(frozen_parameters(model), DTYPES[run.model.dtype])
    rank: Rank = plugins.make(BACKENDS, run.training.backend, model, at="training.backend")
    if (reference := reference_of(run)) is not None:
        rank, objective = Referred(rank, reference), replace(objective, refer=reference.filled)
    return Own(rank, objective, model.config.get_text_config(), frozen)

"""The parts of a trainer that RUN.toml chooses, for the service and for a replay. † torch"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline import plugins
from pipeline.model.load import load_model
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import ADVANTAGES, BACKENDS, Advantage, Backend, Rank
from pipeline.run import Run
from services.training.objective import Objective, compose
from services.training.optimize import Optimizer, learning_rate
from services.training.ranks import check, follow, lead


class Parts(NamedTuple):
    """What steps, and what a batch is judged and saved with."""

    backend: Backend
    optimizer: Optimizer
    advantage: Advantage
    tokenizer: Tokenizer
    vocabulary: int

    def save_model(self, folder: str) -> None:
        """A Hugging Face folder that can be loaded by itself; it must not exist yet."""
        self.backend.save(folder)
        self.tokenizer.save(folder)

    def save(self, folder: Path) -> None:
        """What a checkpoint holds: the model, and the state that training goes on from."""
        self.save_model(str(folder / "model"))  # first, since the state refers to it
        (folder / "state").mkdir()
        self.backend.save_state(str(folder / "state"))


def assemble(run: Run) -> Parts:
    """Rank 0's. Raises ConfigError for parts that cannot be had."""
    rank, objective, vocabulary = _rank(run)
    backend, act = lead(rank, objective, run)
    advantage: Advantage = plugins.build(
        ADVANTAGES, run.objective.advantage, at="objective.advantage"
    )
    training = run.training
    rate = partial(learning_rate, peak=training.learning_rate, warmup_steps=training.warmup_steps)
    tokenizer = Tokenizer(run.model.path)
    return Parts(backend, Optimizer(act, rate=rate), advantage, tokenizer, vocabulary)


def assist(run: Run) -> None:
    """All that a rank other than 0 does. Raises ConfigError as `assemble` does."""
    rank, objective, _ = _rank(run)
    follow(rank, objective, run)


def _rank(run: Run) -> tuple[Rank, Objective, int]:
    """With how many ids its model knows."""
    check(run)
    objective = compose(run)
    # The optimizer's own copy: in bfloat16 a small learning rate would be rounded away.
    model = load_model(run.model.path, dtype="float32")
    rank: Rank = plugins.make(BACKENDS, run.training.backend, model, at="training.backend")
    return rank, objective, int(model.config.get_text_config().vocab_size)

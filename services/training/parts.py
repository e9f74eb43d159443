"""The parts of a trainer that RUN.toml chooses, for the service and for a replay. † torch"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline import plugins
from pipeline.model.load import load_model
from pipeline.model.tokens import Tokenizer
from pipeline.protocols import ADVANTAGES, BACKENDS, LOSSES, Advantage, Backend, Loss
from pipeline.run import Run
from services.training.optimize import Optimizer, learning_rate


class Parts(NamedTuple):
    """What steps, and what a batch is judged and saved with."""

    backend: Backend
    optimizer: Optimizer
    advantage: Advantage
    tokenizer: Tokenizer

    def save_model(self, folder: str) -> None:
        """A Hugging Face folder that can be loaded by itself; it must not exist yet."""
        self.backend.save(folder)
        self.tokenizer.save(folder)

    def save(self, folder: Path) -> None:
        """What a checkpoint holds: the model, and the state that training goes on from."""
        self.save_model(str(folder / "model"))
        (folder / "state").mkdir()
        self.backend.save_state(str(folder / "state"))


def assemble(run: Run) -> Parts:
    """Raises ConfigError for parts that cannot be had."""
    # The optimizer's own copy: in bfloat16 a small learning rate would be rounded away.
    model = load_model(run.model.path, dtype="float32")
    tokenizer = Tokenizer(run.model.path)
    backend: Backend = plugins.make(BACKENDS, run.training.backend, model, at="training.backend")
    loss: Loss = plugins.build(LOSSES, run.objective.loss, at="objective.loss")
    advantage: Advantage = plugins.build(
        ADVANTAGES, run.objective.advantage, at="objective.advantage"
    )
    training = run.training
    rate = partial(learning_rate, peak=training.learning_rate, warmup_steps=training.warmup_steps)
    return Parts(backend, Optimizer(backend, loss, rate=rate), advantage, tokenizer)

"""Where the parts of prompting meet: the composition root of the service."""

from __future__ import annotations

from pipeline.bus.bus import Bus
from pipeline.bus.evaluations import HELD_OUT
from pipeline.errors import Unusable
from pipeline.families import DATASETS
from pipeline.grades import meanwhile
from pipeline.life import Life
from pipeline.metrics import Metrics
from pipeline.model.tokens import Tokenizer, context_length
from pipeline.plugins import make
from pipeline.protocols import Dataset, Text
from pipeline.run import Run
from services.process import open_run
from services.prompting.evaluation import HeldOut, HeldOutRecipe
from services.prompting.metrics import Numbers
from services.prompting.recipe import Recipe
from services.prompting.service import Prompting

OPEN_SECONDS = 600.0


def build(run: Run, bus: Bus, life: Life, metrics: Metrics) -> Prompting:
    """Raises ConfigError for a data set that cannot be had.

    The digests of the data and of the held-out data join the run's identity: prompting processes
    whose data differ would admit different prompts under one cursor, and a curve over two held-out
    sets would compare nothing.
    """
    with life.long("data set to open", OPEN_SECONDS):
        dataset: Dataset = make(DATASETS, run.data, at="data")
        held_out = _held_out(run)
        digests = {HELD_OUT: held_out.digest()} if held_out else {}
        open_run(bus, run, data=dataset.digest(), **digests)
        tokenizer = Tokenizer(run.model.path, template=run.model.template)
        tokenizer.check(_first(dataset))
        recipe = _recipe(dataset, run, tokenizer, at="data")
        evaluations = _evaluations(held_out, run, bus, tokenizer=tokenizer) if held_out else None
    return Prompting(
        bus, life, recipe, window=run.window, numbers=Numbers(metrics), held_out=evaluations
    )


def _first(dataset: Dataset) -> Text:
    """Stands for all of them where nothing has begun; at fault itself, it waits for its turn."""
    try:
        return dataset[0].prompt
    except Unusable:
        return ""


def _recipe(dataset: Dataset, run: Run, tokenizer: Tokenizer, *, at: str) -> Recipe:
    context = context_length(run.model.path)
    return Recipe(dataset, run=run, encode=tokenizer.encode, context=context, at=at)


def _held_out(run: Run) -> Dataset | None:
    """The held-out data, if the run's engines are to answer them."""
    if run.evaluation is None or not meanwhile(run):
        return None
    made: Dataset = make(DATASETS, run.evaluation.data, at=HELD_OUT)
    return made


def _evaluations(dataset: Dataset, run: Run, bus: Bus, *, tokenizer: Tokenizer) -> HeldOut:
    assert run.evaluation, "there is held-out data"
    tokenizer.check(_first(dataset))
    recipe = _recipe(dataset, run, tokenizer, at=HELD_OUT)
    prompts = HeldOutRecipe(recipe, run, run.evaluation, examples=len(dataset))
    return HeldOut(bus, prompts, size=prompts.size)

"""What `sluice up` can know to be wrong before it starts a process.

Data sets are opened and scorers looked up with their options, as the services will. Of the parts
that need torch only the names are checked, theirs and their options', and of the model its
folder: their services check the rest in their first seconds. What fits a run, and what does not,
is in `pipeline.fit`.
"""

from __future__ import annotations

import shutil
import sys

from pipeline import plugins
from pipeline.anchor import check_anchor
from pipeline.errors import ConfigError
from pipeline.families import DATASETS, SCORERS, SINKS
from pipeline.fit import check_rewards, drawbacks
from pipeline.model.source import check_model, context_in
from pipeline.options import check_options
from pipeline.protocols import Dataset
from pipeline.run import Run
from pipeline.verdicts import terms


def preflight(run: Run) -> None:
    """Raises ConfigError for the first fault; says on standard error what does not fit well."""
    check_model(run.model.path)
    anchored = _fits(run)  # first: it knows why some names are no plug-ins
    check_options(run)
    dataset: Dataset = plugins.make(DATASETS, run.data, at="data")
    if run.evaluation:
        plugins.make(DATASETS, run.evaluation.data, at="evaluation.data")
    for number, term in enumerate(terms(run.scoring.scorers)):
        at = f"scoring.scorers[{number}]"
        scorer = plugins.find(SCORERS, term.spec, at)
        plugins.check(scorer, plugins.options_of(term.spec), at, given=frozenset({"policy"}))
        plugins.check_call(scorer, at, None)
    _check_pythons(run)
    context = context_in(run.model.path)
    for said in (*drawbacks(run, examples=len(dataset), context=context), anchored):
        if said:
            print(f"sluice: {said}", file=sys.stderr)


def _check_pythons(run: Run) -> None:
    """Raises ConfigError for an interpreter that is none."""
    for service, python in run.up.python.items():
        if shutil.which(python) is None:
            rule = "is no program that can be started"
            remedy = "give the bin/python of an environment"
            raise ConfigError(f"up.python.{service}", python, rule=rule, remedy=remedy)


def _fits(run: Run) -> str | None:
    """What is to be said of the objective, where something is."""
    said = check_anchor(run.objective)
    check_rewards(run)
    for number, spec in enumerate(run.training.sinks):
        at = f"training.sinks[{number}]"
        sink = plugins.find(SINKS, spec, at)
        plugins.check(sink, plugins.options_of(spec), at, given=frozenset({"folder"}))
    if run.up.ranks > 1 and plugins.name_of(run.training.backend, "training.backend") == "torch":
        remedy = 'set training.backend = "deepspeed", or up.ranks = 1'
        raise ConfigError("up.ranks", run.up.ranks, rule="torch is one process", remedy=remedy)
    return said

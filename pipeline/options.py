"""The options of every part that a run names, read from source: an unknown one is refused early.

Nothing is imported but the tables: a part's own module may load torch, or lack what it needs. What
the text does not show (a name that is imported or decorated, `**kwargs`) is left to the process
that uses the part, and so are the values: see `plugins.py`.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from pipeline import families, plugins
from pipeline.anchor import corrections_of
from pipeline.run import Run, Spec
from pipeline.verdicts import AT, KEYS, terms

FAMILIES: dict[str, plugins.Table] = {
    "weights": families.TRANSPORTS,
    "model.adapter": families.ADAPTERS,
    "data": families.DATASETS,
    "inference.engine": families.ENGINES,
    AT: families.SCORERS,
    "objective.advantage": families.ADVANTAGES,
    "objective.loss": families.LOSSES,
    "objective.correction": families.CORRECTIONS,
    "objective.kl": families.DIVERGENCES,
    "training.backend": families.BACKENDS,
    "training.sinks": families.SINKS,
}
"""The keys that take a plug-in, and what each can name."""

GIVEN = {
    "weights": {"run", "redis"},
    "inference.engine": {"boot", "swap", "origin", "canary_gap", "sampling"},
    "training.sinks": {"folder"},
    AT: {"policy"},
}
"""What the program gives to a plug-in, and no user can."""


class Written(NamedTuple):
    """The parameters of a callable as they are written, and the module around it."""

    arguments: ast.arguments
    module: ast.Module


class Part(NamedTuple):
    """A plug-in that a run names: its key in FAMILIES, and where in RUN.toml it stands."""

    family: str
    at: str
    spec: Spec


def check_options(run: Run) -> None:
    """Raises ConfigError for a part that no table has, and for an option that its text lacks."""
    for part in parts(run):
        module, attribute = plugins.locate(FAMILIES[part.family], part.spec, part.at)
        options = plugins.options_of(part.spec)
        if options and (found := written(module, attribute)):
            known = {argument.arg for argument in found.arguments.kwonlyargs}
            known |= {*KEYS} if part.family == AT else set()
            plugins.check_names(options, known - GIVEN.get(part.family, set()), part.at)


def parts(run: Run) -> Iterator[Part]:
    """Every plug-in of the run. Raises ConfigError for a scorer's weight or gate that is none."""
    yield Part("weights", "weights", run.weights)
    if run.model.adapter is not None:
        yield Part("model.adapter", "model.adapter", run.model.adapter)
    yield Part("data", "data", run.data)
    if run.evaluation:
        yield Part("data", "evaluation.data", run.evaluation.data)
    if run.objective.imitation:
        yield Part("data", "objective.imitation.data", run.objective.imitation.data)
    yield Part("inference.engine", "inference.engine", run.inference.engine)
    for number, term in enumerate(terms(run.scoring.scorers)):
        yield Part(AT, f"{AT}[{number}]", term.spec)
    yield Part("objective.advantage", "objective.advantage", run.objective.advantage)
    yield Part("objective.loss", "objective.loss", run.objective.loss)
    for spec in corrections_of(run.objective):
        yield Part("objective.correction", "objective.correction", spec)
    if run.objective.kl is not None:
        yield Part("objective.kl", "objective.kl", run.objective.kl)
    yield Part("training.backend", "training.backend", run.training.backend)
    for number, spec in enumerate(run.training.sinks):
        yield Part("training.sinks", f"training.sinks[{number}]", spec)


def written(module: str, attribute: str) -> Written | None:
    """The callable's text; None where that may not be all there is to it."""
    tree = _source(module)
    if tree is None or [*_binders(tree, attribute)] != [True]:
        return None
    found = next(n for n in tree.body if getattr(n, "name", None) == attribute)
    if isinstance(found, ast.ClassDef) and (base := _base(found, tree)):
        return written(*base)
    arguments = _made(found) if isinstance(found, ast.ClassDef) else _called(found)
    return Written(arguments, tree) if arguments else None


def _base(found: ast.ClassDef, tree: ast.Module) -> tuple[str, str] | None:
    """Module and name of the class whose maker a class has, where it has none of its own."""
    names = {getattr(node, "name", "") for node in found.body}
    if len(found.bases) != 1 or found.decorator_list or names & {"__init__", "__new__"}:
        return None
    for node in tree.body:
        match node, found.bases[0]:
            case ast.ImportFrom(str(module), aliases, 0), ast.Name(base):
                if any(alias.name == base and alias.asname is None for alias in aliases):
                    return module, base
    return None


def _source(module: str) -> ast.Module | None:
    try:
        spec = spec_of(module)
        if spec is None or not (spec.origin or "").endswith(".py"):
            return None
        return ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))
    except (ImportError, OSError, SyntaxError, ValueError):
        return None


def spec_of(module: str) -> ModuleSpec | None:
    """Where a module is; `find_spec` by itself would import the packages around it.

    Raises ImportError, and ValueError for a module that was not found but made.
    """
    plugins.look_here()
    top, *rest = module.split(".")
    spec, name = importlib.util.find_spec(top) if top else None, top
    for word in rest:
        name = f"{name}.{word}"
        within = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(name, [*within]) if within else None
    return spec


def _binders(tree: ast.Module, name: str) -> Iterator[bool]:
    """For each place that gives the name a meaning, whether it is a definition at the top."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                yield node in tree.body
            case ast.alias() if name in (node.asname, node.name) or node.name == "*":
                yield False
            case ast.Name(found, ast.Store() | ast.Del()) if found == name:
                yield False


def _made(found: ast.ClassDef) -> ast.arguments | None:
    """The parameters of a class's own maker."""
    names = [getattr(node, "name", "") for node in found.body]
    if found.decorator_list or found.keywords or "__new__" in names:
        return None
    if names.count("__init__") == 1:
        return _called(found.body[names.index("__init__")])
    return None


def _called(found: ast.stmt) -> ast.arguments | None:
    if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) or found.decorator_list:
        return None
    return None if found.args.kwarg else found.args

"""From a name in RUN.toml to a callable: the tables are in `families.py`, the building is here.

A plug-in is a callable; its keyword-only parameters are its options, checked before anything is
started. A class is called, a function is bound. Of one part, `low` and `high` are a range.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec

from pipeline.config import nearest
from pipeline.errors import ConfigError
from pipeline.run import Spec

Table = Mapping[str, str]

EXTRAS = {
    "pyarrow": "data",
    "datasets": "data",
    "reasoning_gym": "data",
    "mpmath": "score",
    "jsonschema": "score",
    "httpx": "score",
    "deepspeed": "deepspeed",
    "vllm": "vllm",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Which extra brings a package; for all others it is `model`."""


def name_of(spec: Spec, at: str) -> str:
    """The plug-in's name; raises ConfigError where a table lacks `use`."""
    if isinstance(spec, str):
        return spec
    if not isinstance(spec.get("use"), str):
        raise ConfigError(at, spec, rule="needs `use`", remedy=f'write {at} = {{ use = "NAME" }}')
    return str(spec["use"])


def options_of(spec: Spec) -> dict[str, Any]:
    """The options that stand beside `use`."""
    return {} if isinstance(spec, str) else {k: v for k, v in spec.items() if k != "use"}


def make(table: Table, spec: Spec, *args: object, at: str, **given: object) -> Any:
    """A part, by calling the plug-in with `args`, the spec's options, and what is `given`.

    Of what is `given` a plug-in gets what it has a keyword-only parameter for.
    """
    thing = find(table, spec, at)
    mine = _taken(thing, given)
    options = check(thing, options_of(spec), at, given=frozenset(mine))
    return thing(*args, **mine, **options)


def build(table: Table, spec: Spec, *, at: str, **given: object) -> Any:
    """A function, bound to the spec's options; a class with a `__call__` is made from them.

    Of what is `given` a plug-in gets what it has a keyword-only parameter for.
    """
    thing = find(table, spec, at)
    mine = _taken(thing, given)
    options = check(thing, options_of(spec), at, given=frozenset(mine)) | mine
    return thing(**options) if inspect.isclass(thing) else functools.partial(thing, **options)


def _taken(thing: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the plug-in has a keyword-only parameter for."""
    names = inspect.signature(thing).parameters if given else {}
    return {name: value for name, value in given.items() if name in names}


def locate(table: Table, spec: Spec, at: str) -> tuple[str, str]:
    """The module and the attribute behind the name; imports nothing."""
    name = name_of(spec, at)
    if name not in table and ":" not in name:
        remedy = f'{nearest(name, [*table])} or "package.module:thing"'
        raise ConfigError(at, name, rule="no such plug-in", remedy=remedy)
    module, _, attribute = table.get(name, name).partition(":")
    return module, attribute


def find(table: Table, spec: Spec, at: str) -> Callable[..., Any]:
    """The callable behind the name; imports its module and nothing else."""
    name, (module, attribute) = name_of(spec, at), locate(table, spec, at)
    look_here()
    try:
        thing: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as exc:  # a stranger's code: whatever it raises is the input's
        rule = f"cannot be imported ({type(exc).__name__}: {exc})"
        remedy = "check the name, and install what it needs"
        if name in table and isinstance(exc, ModuleNotFoundError):  # the extra has what it lacks
            package = (exc.name or "").partition(".")[0]
            remedy = f"pip install 'sluice-rl[{EXTRAS.get(package, 'model')}]'"
            if package == "vllm":
                remedy += " in an environment of its own (docs/deployment.md#vllm)"
        raise ConfigError(at, name, rule=rule, remedy=remedy) from exc
    if not callable(thing):
        raise ConfigError(at, name, rule="is not callable", remedy="name a function or a class")
    return thing


def look_here() -> None:
    """A user's own module may stand where `sluice` was called."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def check_names(options: Mapping[str, Any], known: Collection[str], at: str) -> None:
    """Raises ConfigError, with the nearest name, for an option that is not known."""
    for key, value in options.items():
        if key not in known:
            remedy = nearest(key, [*known]) if known else "it has no options"
            raise ConfigError(f"{at}.{key}", value, rule="no such option", remedy=remedy)


def check(
    thing: Callable[..., Any], options: Mapping[str, Any], at: str, given: frozenset[str]
) -> dict[str, Any]:
    """The options, converted by their annotations; raises ConfigError that names the nearest."""
    parameters = inspect.signature(thing).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in given}
    check_names(options, known, at)
    hints = _hints(thing, known, at)
    checked = {}
    for key, value in options.items():
        try:
            checked[key] = msgspec.convert(value, hints.get(key, Any), strict=True)
        except msgspec.ValidationError as exc:
            remedy = "change the value"
            raise ConfigError(f"{at}.{key}", value, rule=str(exc), remedy=remedy) from exc
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in checked:
            raise ConfigError(f"{at}.{key}", None, rule="is required", remedy=f"add {key}")
    _check_range({key: parameter.default for key, parameter in known.items()} | checked, at)
    return checked


def _check_range(options: Mapping[str, Any], at: str) -> None:
    """Raises ConfigError where nothing lies between `low` and `high`."""
    low, high = options.get("low"), options.get("high")
    if isinstance(low, Real) and isinstance(high, Real) and low > high:
        rule = f"is above high, which is {high}, so that nothing lies between them"
        raise ConfigError(f"{at}.low", low, rule=rule, remedy="lower it, or raise high")


def check_call(thing: Callable[..., Any], at: str, *args: object) -> None:
    """Raises ConfigError unless the plug-in, or a class's instance, can be called with `args`."""
    called = thing.__call__ if inspect.isclass(thing) else thing
    given = (None, *args) if inspect.isclass(thing) else args
    parameters = inspect.signature(called)
    options = {p.name for p in parameters.parameters.values() if p.kind is p.KEYWORD_ONLY}
    try:
        parameters.bind(*given, **dict.fromkeys(options))
    except TypeError as exc:
        rule = f"must take {len(args)} positional argument ({exc})"
        raise ConfigError(at, None, rule=rule, remedy="change its signature") from exc


def _hints(thing: Callable[..., Any], known: Mapping[str, object], at: str) -> dict[str, Any]:
    """The options' types, and theirs alone: other names may exist for a type checker only."""
    target: Any = thing
    if inspect.isclass(thing):
        target = thing.__init__
    elif not inspect.isroutine(thing):
        target = type(thing).__call__
    target = inspect.unwrap(target)
    written = getattr(target, "__annotations__", {})
    options = SimpleNamespace(__annotations__={k: v for k, v in written.items() if k in known})
    try:
        return get_type_hints(options, getattr(target, "__globals__", {}), include_extras=True)
    except (NameError, TypeError) as exc:
        rule = f"the types of its options cannot be read ({exc})"
        raise ConfigError(at, None, rule=rule, remedy="import them at run time") from exc

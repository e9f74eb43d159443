"""The options in docs/configuration.md are those that a plug-in takes."""

from __future__ import annotations

import inspect

import plugin_options
import pytest

from pipeline import plugins

LIGHT = [
    (key, name, where)
    for key, names in plugin_options.FAMILIES.items()
    for name, where in names.items()
    if key not in ("training.backend", "training.sinks")  # these need what may not be here
]


@pytest.mark.parametrize(("key", "name", "where"), LIGHT, ids=lambda word: word)
def test_an_option_that_is_told_is_one_that_is_taken(key: str, name: str, where: str) -> None:
    thing = plugins.find({name: where}, name, key)
    taken = {
        p.name: p for p in inspect.signature(thing).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    for given in plugin_options.GIVEN.get(key, ()):
        taken.pop(given, None)
    rows = "".join(plugin_options.table()).splitlines()
    told = [row for row in rows if f"| `{key}` | `{name}` |" in row]
    assert [row.split("|")[3].strip(" `") for row in told] == ([*taken] or ["—"])
    for row, parameter in zip(told, taken.values(), strict=False):
        assert ("required" in row) == (parameter.default is parameter.empty)

"""RUN.toml plus overrides to a Run. Knows how to read, merge and name mistakes; no key by name."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.errors import ConfigError
from pipeline.run import Run

Tree = dict[str, Any]


def load(path: Path, overrides: Sequence[str] = ()) -> Run:
    """The run in `path`, with `section.key=value` overrides; raises ConfigError in one line."""
    tree = _read(path)
    for override in overrides:
        _override(tree, override)
    known = dict(_keys(Run))
    for key in _unknown(tree, Run):
        _refuse_unknown(f"{path}: {key}", key, known)
    try:
        return msgspec.convert(tree, Run, strict=True)
    except msgspec.ValidationError as exc:
        raise _explain(path, exc, tree) from exc


def dump(run: Run) -> str:
    """The run as TOML that `load` reads back to the same."""
    return "\n".join(_lines(msgspec.to_builtins(run))) + "\n"


def nearest(word: str, known: Sequence[str]) -> str:
    """A remedy that names the nearest known word, or all of them."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


def documented(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, type, str]]:
    """Every key of the Struct and its sections as (key, Struct, name), in their order."""
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        section = _section(hints[name])
        if section is None:
            yield f"{prefix}{name}", kind, name
        else:
            yield from documented(section, f"{prefix}{name}.")


def _read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(str(path), None, rule="no such file", remedy="name a RUN.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as exc:
        raise ConfigError(str(path), None, rule=f"not TOML: {exc}", remedy="mend it") from exc


def _override(tree: Tree, text: str) -> None:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError("--set", text, rule="needs KEY=VALUE", remedy="as in --set lag.max=4")
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = tree.setdefault(parent, {})
        if isinstance(child, str):  # a plug-in by its short name gets an option
            child = tree[parent] = {"use": child}
        if not isinstance(child, dict):
            raise ConfigError(
                f"--set {key}", None, rule=f"{parent} is no section", remedy="name a key in one"
            )
        tree = child
    tree[last] = _value(value.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _section(hint: Any) -> type[msgspec.Struct] | None:
    """The Struct behind a field's type, also behind `Struct | None`."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    structs = [o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct)]
    return structs[0] if structs else None


def _keys(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    for key, _, name in documented(kind):
        yield key, name


def _unknown(tree: Tree, kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for name, value in tree.items():
        if name not in hints:
            yield f"{prefix}{name}"
        elif (section := _section(hints[name])) and isinstance(value, dict):
            yield from _unknown(value, section, f"{prefix}{name}.")


def _refuse_unknown(where: str, key: str, known: dict[str, str]) -> None:
    sections = {k.rpartition(".")[0] for k in known} - {""}
    by_last = {k for k, name in known.items() if name == key.rpartition(".")[2]}
    remedy = f"did you mean {min(by_last)!r}?" if by_last else nearest(key, [*known, *sections])
    raise ConfigError(where, None, rule="no such key", remedy=remedy)


def _explain(path: Path, exc: msgspec.ValidationError, tree: Tree) -> ConfigError:
    """msgspec says `Expected X - at `$.a.b``; the user wants the key, the value and the rule."""
    rule, _, at = str(exc).partition(" - at `$")
    key = at.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", rule):
        key = f"{key}.{missing[1]}".lstrip(".")
        return ConfigError(f"{path}: {key}", None, rule="is required", remedy=f"add {key}")
    value: Any = tree
    for part in re.findall(r"\w+", key):
        value = value.get(part) if isinstance(value, dict) else None
    rule = rule[:1].lower() + rule[1:]
    return ConfigError(f"{path}: {key}", value, rule=rule, remedy="see docs/configuration.md")


def _lines(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Plain keys first, then the sections; a plug-in with options stays on one line."""
    sections = {k: v for k, v in tree.items() if isinstance(v, dict) and "use" not in v}
    for key, value in tree.items():
        if key not in sections and value is not None:
            yield f"{key} = {_toml(value)}"
    for key, section in sections.items():
        yield f"\n[{prefix}{key}]"
        yield from _lines(section, f"{prefix}{key}.")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()

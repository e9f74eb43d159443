"""RUN.toml plus overrides to a Run. Knows how to read, merge and name mistakes; no key by name."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.errors import ConfigError
from pipeline.run import Run, Spec

Tree = dict[str, Any]


def load(path: Path, overrides: Sequence[str] = ()) -> Run:
    """The run in `path`, with `section.key=value` overrides; raises ConfigError in one line."""
    tree = _read(path)
    for override in overrides:
        _override(tree, override)
    known = dict(_keys(Run))
    for key in _unknown(tree, Run):
        _refuse_unknown(_place(path, key, overrides), key, known)
    for key, value in _not_finite(tree):
        remedy = "give a finite number"
        where = _place(path, key, overrides)
        raise ConfigError(where, value, rule="is no quantity", remedy=remedy)
    try:
        return msgspec.convert(tree, Run, strict=True)
    except msgspec.ValidationError as exc:
        raise _explain(exc, tree, lambda key: _place(path, key, overrides)) from exc


def dump(run: Run) -> str:
    """The run as TOML that `load` reads back to the same."""
    return "\n".join(_lines(msgspec.to_builtins(run))) + "\n"


def nearest(word: str, known: Sequence[str], prefix: str = "") -> str:
    """A remedy that names the nearest known word, or all of them, each with the prefix."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {prefix + close[0]!r}?"
    return f"known: {', '.join(prefix + word for word in sorted(known))}"


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
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        rule = f"cannot be read ({exc.strerror})"
        raise ConfigError(str(path), None, rule=rule, remedy="name a RUN.toml") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), None, rule=f"not TOML: {exc}", remedy="mend it") from exc


def _override(tree: Tree, text: str) -> None:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError("--set", text, rule="needs KEY=VALUE", remedy="as in --set lag.max=4")
    *parents, last = key.strip().split(".")
    for depth, parent in enumerate(parents, start=1):
        child = tree.setdefault(parent, _default_plug_in(".".join(parents[:depth])) or {})
        if isinstance(child, str):  # a plug-in by its short name gets an option
            is_plug_in = _hint(".".join(parents[:depth])) == Spec
            child = tree[parent] = {"use": child} if is_plug_in else {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"--set {key}", None, rule=f"{parent} is no section", remedy="name a key in one"
            )
        tree = child
    tree[last] = literal(value.strip())


def _default_plug_in(key: str) -> str:
    """The name that a plug-in's key has where nobody gives one; nothing for all other keys."""
    for known, kind, name in documented(Run):
        if known == key and get_type_hints(kind)[name] == Spec:
            default = next(f.default for f in msgspec.structs.fields(kind) if f.name == name)
            return default if isinstance(default, str) else ""
    return ""


def literal(text: str) -> Any:
    """What stands behind KEY= on a command line: a value as TOML writes it, and else a text."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tree["value"] if len(tree) == 1 else text


def _section(hint: Any) -> type[msgspec.Struct] | None:
    """The Struct behind a field's type, also behind `Struct | None`; not where a word may stand."""
    structs = [o for o in _options(hint) if isinstance(o, type) and issubclass(o, msgspec.Struct)]
    return structs[0] if structs and not _words(hint) else None


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> tuple[str, ...]:
    return tuple(w for o in _options(hint) if get_origin(o) is Literal for w in get_args(o))


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


def _not_finite(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """TOML can write `inf` and `nan`; no key of a run can mean them."""
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _not_finite(inner, f"{key}[{number}]")


def _refuse_unknown(where: str, key: str, known: dict[str, str]) -> None:
    """Names the same key of another section, or the nearest of this one, or of them all."""
    section, dot, last = key.rpartition(".")
    siblings = [name for k, name in known.items() if k == f"{section}.{name}"]
    if same := [k for k, name in known.items() if name == last]:
        remedy = f"did you mean {min(same)!r}?"
    elif siblings:
        remedy = nearest(last, siblings, section + dot)
    else:
        remedy = nearest(key, [*known, *({k.rpartition(".")[0] for k in known} - {""})])
    raise ConfigError(where, None, rule="no such key", remedy=remedy)


def _place(path: Path, key: str, overrides: Sequence[str]) -> str:
    """Where a key that is at fault was given: in the file, or by an override of it or its parts."""
    for told in (override.partition("=")[0].strip() for override in overrides):
        if f"{key}.".startswith((f"{told}.", f"{told}[")) or told.startswith(f"{key}."):
            return f"--set {key}"
    return f"{path}: {key}"


def _explain(exc: msgspec.ValidationError, tree: Tree, place: Callable[[str], str]) -> ConfigError:
    """msgspec says `Expected X - at `$.a.b``; the user wants the key, the value and the rule."""
    rule, _, at = str(exc).partition(" - at `$")
    key = at.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", rule):
        key = f"{key}.{missing[1]}".lstrip(".")
        return ConfigError(place(key), None, rule="is required", remedy=f"add {key}")
    if not key:  # a rule that joins sections names its keys itself
        return ConfigError(place(key).rstrip(": "), None, rule=rule, remedy="change one of them")
    value: Any = tree
    for part in re.findall(r"\w+", key):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, dict) and (choices := _words(_hint(key))):
        remedy = nearest(str(value), choices)
        return ConfigError(place(key), value, rule="is no choice", remedy=remedy)
    rule = (rule[:1].lower() + rule[1:]).replace("object", "table")
    return ConfigError(place(key), value, rule=rule, remedy="see docs/configuration.md")


def _hint(key: str) -> Any:
    """The type of a key that is documented."""
    for known, kind, name in documented(Run):
        if known == key:
            return get_type_hints(kind)[name]
    return None


def _lines(tree: Tree, prefix: str = "") -> Iterator[str]:
    """Plain keys first, then the sections; a plug-in with options stays on one line."""
    sections = {k: v for k, v in tree.items() if isinstance(v, dict) and "use" not in v}
    for key, value in tree.items():
        if key not in sections and value is not None:
            yield f"{_name(key)} = {_toml(value)}"
    for key, section in sections.items():
        yield f"\n[{prefix}{key}]"
        yield from _lines(section, f"{prefix}{key}.")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_name(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return _json(value)


def _name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _json(key)


def _json(value: Any) -> str:
    """JSON is TOML, but for one character that TOML wants escaped."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")

"""The content hash of a scorer: of the source that its verdicts come from, and of its options.

Read, not imported: the same on every machine that has the same text. What its name and version are
is told elsewhere.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, MethodType

import msgspec

from pipeline.families import SCORERS
from pipeline.options import spec_of
from pipeline.plugins import locate, options_of
from pipeline.run import Spec
from pipeline.verdicts import AT

DIGEST_BYTES = 4
SHIPPED = "services.scoring.scorers"
OURS = ("pipeline", "services")
"""Of these only SHIPPED counts: what stands around all scorers is told by the release."""
_NAME = re.compile(r"\w[\w.-]{0,99}(?:/\w[\w.-]{0,99}){0,9}")
"""A file's or a folder's, below the one where a module is."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders in which things stand beside each other that have nothing to do with each other."""


def content_hash(spec: Spec, thing: object) -> str:
    """8 hex digits of a scorer, `thing`, that is named by `spec`.

    Its source is the module that its name leads to, the module that it was defined in, and whatever
    these import, anywhere in their text, of their own packages, of the folder in which they stand,
    and of the scorers that ship; and files and packages beside such a module that are named in its
    text. A module without source counts by its bytes, one without a file by its name. Not counted
    are other packages, what is reached by a computed name, and what is in a file or a model that an
    option names: `version` is the place to tell of these.
    """
    home, _ = locate(SCORERS, spec, AT)
    pieces = [msgspec.json.encode(options_of(spec), order="sorted")]
    for name, text in sorted(_texts({home, _home(thing)}).items()):
        pieces += [name.encode(), text]
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        digest.update(hashlib.blake2b(piece).digest())
    return digest.hexdigest()


def _home(thing: object) -> str:
    """The module that a function, a class, or the class of an object was defined in."""
    while isinstance(thing, partial | MethodType):
        thing = thing.func if isinstance(thing, partial) else thing.__func__
    return str((thing if isinstance(thing, type | FunctionType) else type(thing)).__module__)


def _texts(starts: set[str]) -> dict[str, bytes]:
    """Every module that counts, by its name, and its text."""
    tops = {_top(name) for name in starts}
    folders = {folder for top in tops if (folder := _folder(top))}
    found: dict[str, bytes] = {}
    todo = [*starts]
    while todo:
        name = todo.pop()
        if name in found or not (name in starts or _is_counted(name, tops, folders)):
            continue
        spec = _spec(name)
        if spec is None and name not in starts:
            continue  # it is a name in a module, and no module
        found[name] = _text(spec)
        if spec and (tree := _tree(spec, found[name])):
            todo += _imported(name, spec, tree)
            found |= _named(name, Path(str(spec.origin)).parent, tree)
    return found


def _is_counted(name: str, tops: set[str], folders: set[Path]) -> bool:
    top = _top(name)
    if top in OURS:
        return name == SHIPPED or name.startswith(f"{SHIPPED}.")
    return top not in sys.stdlib_module_names and (top in tops or _folder(top) in folders)


def _folder(top: str) -> Path | None:
    """In which a package or a module stands; None where its neighbours are strangers."""
    spec = None if top in sys.stdlib_module_names or top in OURS else _spec(top)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
    if not places or places[0] is None:
        return None
    folder = Path(places[0]).absolute().parent
    return None if folder.name in INSTALLED else folder


def _text(spec: ModuleSpec | None) -> bytes:
    """As it was written: some machines end lines in another way."""
    read = getattr(spec.loader, "get_data", None) if spec and spec.origin else None
    try:
        raw = bytes(read(spec.origin)) if read and spec else b""
    except OSError:
        return b""
    return raw.replace(b"\r\n", b"\n") if spec and str(spec.origin).endswith(".py") else raw


def _tree(spec: ModuleSpec, text: bytes) -> ast.Module | None:
    try:
        return ast.parse(text) if str(spec.origin).endswith(".py") else None
    except (SyntaxError, ValueError):
        return None


def _named(name: str, folder: Path, tree: ast.Module) -> dict[str, bytes]:
    """What a module reads, or hands to another interpreter: a rubric, what runs in a sandbox."""
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    paths = [folder / word for word in words if isinstance(word, str) and _NAME.fullmatch(word)]
    files = [path for path in paths if path.is_file()]
    for package in (path for path in paths if (path / "__init__.py").is_file()):
        files += package.rglob("*.py")
    return {f"{name}/{file.relative_to(folder).as_posix()}": _read(file) for file in files}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        return b""


def _imported(name: str, spec: ModuleSpec, tree: ast.Module) -> Iterator[str]:
    """What may be a module of all that a module imports."""
    around = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (one for alias in names for one in _prefixes(alias.name))
            case ast.ImportFrom(module, names, level):
                base = ".".join(part for part in (_above(around, level), module) if part)
                yield from (base, *(f"{base}.{alias.name}" for alias in names))


def _prefixes(name: str) -> list[str]:
    """a, a.b and a.b.c: all three are run by `import a.b.c`."""
    words = name.split(".")
    return [".".join(words[: count + 1]) for count in range(len(words))]


def _above(package: str, level: int) -> str:
    """What so many dots stand for within a package; nothing without any."""
    words = package.split(".")
    return ".".join(words[: len(words) - level + 1]) if level else ""


def _top(name: str) -> str:
    return name.partition(".")[0]


def _spec(name: str) -> ModuleSpec | None:
    try:
        return spec_of(name)
    except (ImportError, ValueError):  # one that was made, and not found
        return None

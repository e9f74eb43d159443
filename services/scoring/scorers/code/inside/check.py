"""The checker's side: runs a task's checks, in a sandbox that no program is in.

What the checks call of the program is done in the program's sandbox, and comes back as plain data.
So whatever a program does, to its own interpreter or to its own process, the checks do not see it;
and it sees of them nothing but the arguments that it is called with.
"""

import ast
import builtins
import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from services.scoring.scorers.code.inside.launch import begin
from services.scoring.scorers.code.inside.peer import MUTABLE, Peer
from services.scoring.scorers.code.inside.wire import Link, Lost

ASSERTED = "__asserted__"
FOOLISH = ("antigravity", "this")
"""Modules that do something as they are imported."""


def main() -> None:
    """Runs the checks, in turn, and writes a line on each: right, wrong, memory, crashed or lost.

    The line is what a program cannot write: that its process has ended well says nothing. A check
    that must come to an assert, and did not, is wrong.
    """
    text, link = begin()
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    task = json.loads(text)
    checker = Checker(link)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__[ASSERTED] = checker.asserted
    for source, must_assert in task["checks"]:
        checker.silent = must_assert
        verdict = _one(source, checker, module.__dict__, task["entry"])
        os.write(told, f"{verdict}\n".encode())
    os._exit(0)


def _one(source: str, checker: "Checker", names: dict[str, Any], entry: list[str]) -> str:
    try:
        tree = ast.parse(source)
        names |= _modules(tree, {*names, *entry})
        checker.bind(_names(tree), names, entry)
        tree = ast.fix_missing_locations(_Counted().visit(tree))
        exec(compile(tree, "checks.py", "exec"), names)
    except Lost:
        return "lost"
    except AssertionError:
        return "wrong"
    except MemoryError:
        return "memory"
    except BaseException:  # one check, whatever it raised or how it tried to end; it is told
        return "lost" if checker.lost else "crashed"
    return "lost" if checker.lost else "wrong" if checker.silent else "right"


class _Counted(ast.NodeTransformer):
    """Says of each assert that it is come to."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """The assert behind a call."""
        return [ast.Expr(ast.Call(ast.Name(ASSERTED, ast.Load()), [], [])), node]


def _names(tree: ast.AST) -> list[str]:
    found = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return list(dict.fromkeys(found))


def _modules(tree: ast.AST, known: set[str]) -> dict[str, Any]:
    """The standard modules of which a check uses something: never a program's word for them."""
    used = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    found = {node.id for node in used if isinstance(node, ast.Name)} - known
    modules = {}
    for name in filter(_is_standard, found):
        with suppress(ImportError):  # not every system has all of them
            modules[name] = importlib.import_module(name)
    return modules


def _is_standard(name: str) -> bool:
    return name in sys.stdlib_module_names and name not in FOOLISH


class Checker(Peer):
    """Asks the program; of its own it lends nothing but functions that a check passed on."""

    def __init__(self, link: int) -> None:
        super().__init__(Link(link))
        self.lost = False
        self.silent = False
        self._exceptions: dict[str, type[Exception]] = {}

    def asserted(self) -> None:
        """A check has come to an assert."""
        self.silent = False

    def bind(self, wanted: Sequence[str], names: dict[str, Any], entry: Sequence[str]) -> None:
        """Give the checks the program's names, but for those that Python has or that are there."""
        for name in wanted:
            if name in names or (hasattr(builtins, name) and name not in entry):
                continue
            try:
                kind, value = self.ask("name", name)
            except NameError:
                continue  # it may be one of the check's own
            names[name] = self._bound(name, kind, value)

    def ask(self, verb: str, *parts: Any) -> Any:
        """Once the program is lost it stays so, even where a check caught that.

        Only its iterators can be exhausted: a function that is would end a check's loop over it.
        """
        if self.lost:
            raise Lost("closed")
        try:
            return super().ask(verb, *parts)
        except StopIteration as exc:
            if verb == "next":
                raise
            raise RuntimeError("StopIteration") from exc
        except Lost:
            self.lost = True
            raise

    def answer(self, verb: str, parts: list[Any]) -> Any:
        """A call of a function that was passed on, and of nothing else."""
        if verb != "call" or len(parts) != 2:
            raise Lost("garbled")
        number, arguments = parts
        return self._kept[number](*arguments)

    def returned(self, parts: Sequence[Any], after: list[Any]) -> None:
        """A list that the program has sorted in place is sorted here, too."""
        if not after:
            return
        for mine, then in zip(parts[1], after, strict=False):
            if isinstance(mine, MUTABLE) and type(then) is type(mine):
                _become(mine, then)

    def raised(self, kinds: list[str], text: str) -> Exception:
        """Of a class that Python has or that a check knows by name."""
        for name in kinds:
            kind = self._exceptions.get(name) or getattr(builtins, str(name), None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                try:
                    return kind(text)
                except TypeError:  # it wants more than a text
                    continue
        return RuntimeError(text)

    def stand_in(self, number: int) -> Any:
        return Remote(self, number)

    def number(self, value: Any) -> int | None:
        return object.__getattribute__(value, "_number") if type(value) is Remote else None

    def _bound(self, name: str, kind: str, value: Any) -> Any:
        if kind == "module":  # the checks have their own: what the program calls so could be forged
            return importlib.import_module(name) if value == name and _is_standard(name) else None
        if kind == "builtin":
            return getattr(builtins, name)
        if kind == "exception":
            base = type(self.raised(value[1:], ""))
            return self._exceptions.setdefault(name, type(name, (base,), {}))
        return value


def _become(mine: Any, then: Any) -> None:
    if isinstance(mine, list | bytearray):
        mine[:] = then
    else:
        mine.clear()
        mine.update(then)


class Remote:
    """Stands for a thing of the program that is no plain data: a function, an object, a class.

    It equals nothing but what the program itself made: an object that is equal to everything, or
    that takes part in a sum, would have the last word otherwise.
    """

    __slots__ = ("_number", "_peer")
    __hash__ = object.__hash__

    def __init__(self, peer: Checker, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _ask(self, "call", arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask(self, "getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Remote and bool(_ask(self, "isinstance", value))


def _ask(remote: Remote, verb: str, *parts: Any) -> Any:
    return object.__getattribute__(remote, "_peer").ask(verb, remote, *parts)


def _asking(verb: str) -> Callable[..., Any]:
    return lambda self, *parts: _ask(self, verb, *parts)


def _among_theirs(verb: str) -> Callable[..., Any]:
    def method(self: Remote, other: object) -> Any:
        return _ask(self, verb, other) if type(other) is Remote else NotImplemented

    return method


for _verb in ("getitem", "setitem", "delitem", "len", "iter", "next", "bool", "str", "repr"):
    setattr(Remote, f"__{_verb}__", _asking(_verb))
for _verb in ("int", "float", "abs", "neg", "round"):
    setattr(Remote, f"__{_verb}__", _asking(_verb))
for _verb in (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
):
    setattr(Remote, f"__{_verb}__", _among_theirs(_verb))

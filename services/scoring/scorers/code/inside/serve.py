"""A program whose functions are called from the checker's sandbox.

All of this is in the program's hands once it runs, and nobody relies on it: what comes out is what
its functions gave back, and is judged elsewhere.
"""

import builtins
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from services.scoring.scorers.code.inside.launch import begin
from services.scoring.scorers.code.inside.peer import MUTABLE, Peer
from services.scoring.scorers.code.inside.run import run
from services.scoring.scorers.code.inside.wire import Link, Lost

ASKED: dict[str, Callable[..., Any]] = {
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "abs": abs,
    "neg": operator.neg,
    "round": round,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "isinstance": lambda kind, value: isinstance(value, kind),
}


def main() -> None:
    """As a module whose functions are asked for."""
    text, link = begin()
    names = run(text, "program")
    Program(link, names).run()


class Program(Peer):
    """Serves a checker until that is gone."""

    def __init__(self, link: int, names: dict[str, Any]) -> None:
        super().__init__(Link(link))
        self._names = names

    def run(self) -> None:
        try:
            while True:
                verb, *forms = self.receive()
                self.serve(verb, forms)
        except Lost:
            return

    def answer(self, verb: str, parts: list[Any]) -> Any:
        if verb == "name":
            return self._named(parts[0])
        if verb == "call":
            called, arguments, options = parts
            return called(*arguments, **options)
        return ASKED[verb](*parts)

    def after(self, verb: str, parts: list[Any]) -> list[Any]:
        """Arguments that a call may have changed are returned as they are now."""
        given = parts[1] if verb == "call" else ()
        return [part if isinstance(part, MUTABLE) else None for part in given]

    def returned(self, parts: Sequence[Any], after: list[Any]) -> None:
        """What the checks lend is called by value."""

    def stand_in(self, number: int) -> Any:
        return lambda *arguments: self.ask("call", number, arguments)

    def number(self, value: Any) -> int | None:
        return None

    def _named(self, name: str) -> tuple[str, Any]:
        """What the program calls so: a module, an exception, or any other thing."""
        if name not in self._names:
            raise NameError(f"name {name!r} is not defined")
        value = self._names[name]
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if isinstance(value, type) and issubclass(value, Exception):
            kinds = [kind.__name__ for kind in value.__mro__]
            is_known = vars(builtins).get(kinds[0]) is value
            return ("builtin", kinds[0]) if is_known else ("exception", kinds)
        return "thing", value

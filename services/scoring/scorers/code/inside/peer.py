"""One of two ends that call each other's functions, one call at a time, nested as deep as they go.

Which of its things the other may ask for is for each end to say, in `answer`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from services.scoring.scorers.code.inside.wire import Link, Lost, read, written

MUTABLE = (list, dict, set, bytearray)


class Peer(ABC):
    """`mine` is what this end keeps for the other, by its number there."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._kept: list[Any] = []
        sys.set_int_max_str_digits(0)

    def ask(self, verb: str, *parts: Any) -> Any:
        """What the other end gives back; serves it meanwhile. Raises what it raised, and Lost."""
        self._link.send([verb, *map(self.write, parts)])
        while True:
            verb, *forms = self._link.receive()
            if verb == "returned":
                value, *after = map(self.read, forms)
                self.returned(parts, after)
                return value
            if verb == "raised":
                raise self.raised(*map(self.read, forms))
            self.serve(verb, forms)

    def serve(self, verb: str, forms: Sequence[Any]) -> None:
        """Answer one request; what it raises is the answer."""
        try:
            parts = [self.read(form) for form in forms]
            reply = ["returned", self.write(self.answer(verb, parts))]
            reply += [self.write(part) for part in self.after(verb, parts)]
        except Exception as exc:  # a call's own fault, which the other end is told of
            kinds = [kind.__name__ for kind in type(exc).__mro__]
            reply = ["raised", self.write(kinds), self.write(_text(exc))]
        self._link.send(reply)

    def receive(self) -> list[Any]:
        """The next request, not read yet."""
        return self._link.receive()

    def write(self, value: Any) -> Any:
        """Plain data as it is, the other's own under its number, and all else under one of ours."""
        return written(value, self._keep)

    def read(self, form: Any) -> Any:
        return read(form, self._found)

    @abstractmethod
    def answer(self, verb: str, parts: list[Any]) -> Any:
        """What was asked for."""

    def after(self, verb: str, parts: list[Any]) -> list[Any]:
        """What a call made of its arguments, to go back with what it returned."""
        return []

    @abstractmethod
    def returned(self, parts: Sequence[Any], after: list[Any]) -> None:
        """What a call made of them is known."""

    def raised(self, kinds: list[str], text: str) -> Exception:
        """The other's exception as one of this end."""
        return RuntimeError(f"{kinds[0]}: {text}")

    @abstractmethod
    def stand_in(self, number: int) -> Any:
        """For what the other end keeps under that number."""

    @abstractmethod
    def number(self, value: Any) -> int | None:
        """Of the other's, where the value stands for it."""

    def _keep(self, value: Any) -> list[Any]:
        number = self.number(value)
        if number is not None:
            return ["yours", number]
        self._kept.append(value)
        return ["mine", len(self._kept) - 1]

    def _found(self, whose: str, number: Any) -> Any:
        if not isinstance(number, int) or isinstance(number, bool):
            raise Lost("garbled")
        return self.stand_in(number) if whose == "mine" else self._kept[number]


def _text(exc: BaseException) -> str:
    try:
        return str(exc)[:500]
    except Exception:  # a program's own exception, of which not even the text can be had
        return ""

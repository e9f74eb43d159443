"""What a checker and a program say to each other: plain data in frames over a socket.

A value of a plain type travels as itself, whatever made it: one that is a subclass of a plain type
arrives as that type. All else stays where it is, and travels as a number that stands for it. So
what arrives has no code in it: nothing that is equal to everything, and nothing to unpickle.
"""

import json
import os
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

FRAME_BYTES = 16 * 2**20
HEADER_BYTES = 4

TYPES = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, object)
}


class Lost(BaseException):
    """The other end is gone, or does not speak like this; no `except Exception` hides it."""


class Link:
    """One end of the socket."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor

    def send(self, message: list[Any]) -> None:
        """Raises Lost."""
        payload = json.dumps(message).encode()
        if len(payload) > FRAME_BYTES:
            raise Lost("too large")
        left = memoryview(len(payload).to_bytes(HEADER_BYTES, "little") + payload)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as exc:
            raise Lost("closed") from exc

    def receive(self) -> list[Any]:
        """The next message; raises Lost."""
        size = int.from_bytes(self._exactly(HEADER_BYTES), "little")
        if size > FRAME_BYTES:
            raise Lost("too large")
        try:
            message = json.loads(self._exactly(size))
        except (ValueError, RecursionError) as exc:
            raise Lost("garbled") from exc
        if not isinstance(message, list) or not message:
            raise Lost("garbled")
        return message

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = os.read(self._file, min(size - len(found), 2**20))
            except OSError as exc:
                raise Lost("closed") from exc
            if not part:
                raise Lost("closed")
            found += part
        return bytes(found)


def written(value: Any, keep: Callable[[Any], list[Any]]) -> Any:
    """The value as JSON; what is not plain as `keep` names it."""
    if value is None or isinstance(value, bool):
        return value
    if value is Ellipsis or value is NotImplemented:
        return ["constant", str(value)]
    if isinstance(value, type) and value in TYPES.values():
        return ["type", value.__name__]
    for plain, (name, parts) in PLAIN.items():
        if isinstance(value, plain):
            found = parts(value)
            return found if name is None else [name, *(written(part, keep) for part in found)]
    return keep(value)


def read(form: Any, kept: Callable[[str, Any], Any]) -> Any:
    """The value of what `written` made; `kept` finds what is named. Raises Lost for anything else.

    Every part of it is of exactly one of the plain types.
    """
    if not isinstance(form, list):
        if isinstance(form, dict):
            raise Lost("garbled")
        return form
    try:
        name, *parts = form
        if name in ("mine", "yours"):
            return kept(name, *parts)
        if name == "type":
            return TYPES[parts[0]]
        if name == "constant":
            return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[parts[0]]
        return MAKERS[name]([read(part, kept) for part in parts])
    except Lost:
        raise
    except Exception as exc:  # whatever a forged form does to a maker; the program's loss
        raise Lost("garbled") from exc


def _timedelta(parts: list[Any]) -> timedelta:
    return timedelta(days=parts[0], seconds=parts[1], microseconds=parts[2])


PLAIN: dict[type, tuple[str | None, Callable[[Any], Any]]] = {
    int: (None, lambda v: int.__index__(v)),
    float: (None, lambda v: float.__float__(v)),
    str: (None, lambda v: str.__str__(v)),
    list: ("list", lambda v: list.__iter__(v)),
    tuple: ("tuple", lambda v: tuple.__iter__(v)),
    dict: ("dict", lambda v: [part for pair in dict.items(v) for part in pair]),
    set: ("set", lambda v: set.__iter__(v)),
    frozenset: ("frozenset", lambda v: frozenset.__iter__(v)),
    complex: ("complex", lambda v: [v.real, v.imag]),
    bytes: ("bytes", lambda v: [bytes(v).decode("latin-1")]),
    bytearray: ("bytearray", lambda v: [bytes(v).decode("latin-1")]),
    range: ("range", lambda v: [v.start, v.stop, v.step]),
    deque: ("deque", lambda v: [v.maxlen, *v]),
    Decimal: ("Decimal", lambda v: [str(v)]),
    Fraction: ("Fraction", lambda v: [v.numerator, v.denominator]),
    datetime: ("datetime", lambda v: [v.isoformat()]),
    date: ("date", lambda v: [v.isoformat()]),
    time: ("time", lambda v: [v.isoformat()]),
    timedelta: ("timedelta", lambda v: [v.days, v.seconds, v.microseconds]),
}
"""In this order: a datetime is a date."""

MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "set": set,
    "frozenset": frozenset,
    "complex": lambda parts: complex(*parts),
    "bytes": lambda parts: parts[0].encode("latin-1"),
    "bytearray": lambda parts: bytearray(parts[0].encode("latin-1")),
    "range": lambda parts: range(*parts),
    "deque": lambda parts: deque(parts[1:], parts[0]),
    "Decimal": lambda parts: Decimal(parts[0]),
    "Fraction": lambda parts: Fraction(*parts),
    "datetime": lambda parts: datetime.fromisoformat(parts[0]),
    "date": lambda parts: date.fromisoformat(parts[0]),
    "time": lambda parts: time.fromisoformat(parts[0]),
    "timedelta": _timedelta,
}

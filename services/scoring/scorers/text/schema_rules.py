"""Two rules of JSON Schema that its library works out otherwise than the draft has it, or slowly.

By floats 19.99 is no multiple of 0.01; and objects that are compared each with each are a way to
take all of the time that an answer has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend


def _multiple(
    validator: Any, step: float, instance: Any, schema: object
) -> Iterator[ValidationError]:
    """By the decimals that are written, exactly."""
    if validator.is_type(instance, "number") and (_exact(instance) / _exact(step)).denominator > 1:
        yield ValidationError(f"{instance!r} is no multiple of {step}")


def _unique(
    validator: Any, wanted: bool, instance: Any, schema: object
) -> Iterator[ValidationError]:
    """In one pass: 1 is 1.0, and not true; the order of keys is none."""
    if not wanted or not validator.is_type(instance, "array"):
        return
    if len({_key(item) for item in instance}) < len(instance):
        yield ValidationError("an item stands twice")


def _exact(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(Decimal(repr(number)))


def _key(value: Any) -> Hashable:
    """The same for the same JSON."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return isinstance(value, bool), value


Validator = extend(Draft202012Validator, {"multipleOf": _multiple, "uniqueItems": _unique})

"""Examples out of rows with columns, checked against the Arrow schema that the rows have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.config import nearest
from pipeline.errors import ConfigError, Unusable
from pipeline.protocols import Example, Text
from services.prompting.datasets.checks import fault_of

PROMPT_RULE = "a prompt is a text, or a list of messages {role, content}"


class Columns(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which column is what; `a.b` is field b of the structs in column a.

    Without `task` the column of that name is taken, where there is one.
    """

    prompt: str = "prompt"
    reference: str = "reference"
    task: str | None = None


class Place:
    """Where a value stands: a column, and the fields that lead into its structs."""

    def __init__(self, schema: pa.Schema, name: str, where: str) -> None:
        """Raises ConfigError, with the nearest name, where there is no such column."""
        whole = name in schema.names
        self.column, *self._fields = [name] if whole else name.split(".")
        if self.column not in schema.names:
            remedy = nearest(name, schema.names)
            raise ConfigError(where, name, rule="there is no such column", remedy=remedy)
        self.kind = schema.field(self.column).type
        for field in self._fields:
            names = [f.name for f in self.kind] if pa.types.is_struct(self.kind) else []
            if field not in names:
                remedy = nearest(field, names) if names else f"its type is {self.kind}"
                raise ConfigError(where, name, rule=f"there is no field {field}", remedy=remedy)
            self.kind = self.kind.field(field).type

    def value(self, row: Mapping[str, Any]) -> Any:
        """What stands there; None on the way leads to None."""
        value = row[self.column]
        for field in self._fields:
            value = None if value is None else value[field]
        return value


class Places:
    """The three of an example; `names` are the columns that they need."""

    def __init__(self, schema: pa.Schema, columns: Columns | None, where: str) -> None:
        """`where` names the data set; raises ConfigError for a column that cannot serve."""
        asked = columns or Columns()
        self.prompt = Place(schema, asked.prompt, f"{where}, columns.prompt")
        self.reference = Place(schema, asked.reference, f"{where}, columns.reference")
        _check_prompt(self.prompt, f"{where}, column {asked.prompt}")
        task = asked.task or ("task" if "task" in schema.names else None)
        self.task = Place(schema, task, f"{where}, columns.task") if task else None
        found = (self.prompt, self.reference, self.task)
        self.names = sorted({place.column for place in found if place})

    def example(self, row: Mapping[str, Any], where: str) -> Example:
        """Raises Unusable, which names the row by `where`, for one that holds no prompt."""
        prompt = _prompt(self.prompt.value(row), where)
        task = self.task.value(row) if self.task else None
        reference = self.reference.value(row)
        return Example(prompt=prompt, reference=reference, task="" if task is None else str(task))


def _prompt(value: Any, where: str) -> Text:
    if isinstance(value, list):
        value = [_without_nulls(message) for message in value]
    try:
        prompt: Text = msgspec.convert(value, Text, strict=True)
    except msgspec.ValidationError as exc:
        raise Unusable(where, value, rule=str(exc), remedy=PROMPT_RULE) from exc
    if fault := fault_of(prompt):
        raise Unusable(where, value, rule=fault, remedy="correct the row, or cut it")
    return prompt


def _without_nulls(message: Any) -> Any:
    """A column's messages all have the fields that any has; those that are null are none."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if value is not None}


def _check_prompt(place: Place, where: str) -> None:
    kind = place.kind
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_text(kind) or (_is_list(kind) and _is_message(kind.value_type)):
        return
    raise ConfigError(where, str(place.kind), rule="it holds no prompts", remedy=PROMPT_RULE)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_message(kind: pa.DataType) -> bool:
    """Structs; or JSON, as the `datasets` library keeps structs whose fields differ."""
    return bool(pa.types.is_struct(kind) or isinstance(kind, pa.BaseExtensionType))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))

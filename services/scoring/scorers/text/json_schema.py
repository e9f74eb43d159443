"""The scorer `json_schema`: whether an answer is JSON of the shape that it should have.

What is read as JSON is in `json_text`. Nothing is fetched: a schema refers to itself alone.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
from jsonschema import Draft202012Validator, SchemaError
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from pipeline.errors import ConfigError
from pipeline.protocols import Answer, Verdict
from services.scoring.scorers.reasons import NoAnswer, Why, verdict
from services.scoring.scorers.text.json_text import parsed, same
from services.scoring.scorers.text.places import behind_reasoning, with_opened_fence
from services.scoring.scorers.text.schema_rules import Validator

Fence = Literal["optional", "needed", "refused"]
Against = Literal["schema", "reference"]

AT = "scoring.scorers.schema"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
PROBES: tuple[Any, ...] = (None, True, 0, "", [], {})
"""One of each type: what a schema that refers to itself for ever cannot be asked about."""
LONGEST_CHAIN = 100
"""Of references that lead to nothing but another."""
LONGEST_LINE = 200

_FENCE = re.compile(r"^[ ]{0,3}(`{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)


class JsonSchema:
    """1 where the answer is one JSON value by the schema (draft 2020-12), else 0.

    The value is the answer as a whole, behind the reasoning, or what stands in its only fence of
    JSON. A key that stands twice, NaN, and numbers beyond a float's range are no JSON here.
    """

    def __init__(
        self,
        *,
        schema: dict[str, Any] | str,
        fence: Fence = "optional",
        against: Against = "schema",
    ) -> None:
        """`schema` is a table, or the path of a JSON file, from where `sluice` is called.

        With `against` "reference" the value must be the reference as well. Raises ConfigError for
        what is no schema, or refers to anything beyond itself.
        """
        whole = _read(schema) if isinstance(schema, str) else schema
        self._validator = _validator(whole, AT)
        self._fence, self._against = fence, against
        digest = blake2b(msgspec.json.encode(whole, order="deterministic"), digest_size=4)
        self.version = f"1.{digest.hexdigest()}"

    def __call__(self, answer: Answer) -> Verdict:
        """Raises ValueError where there is no reference that could be compared."""
        if self._against == "reference" and answer.reference is None:
            raise ValueError("there is no reference to compare with")
        try:
            text = with_opened_fence(answer.text, answer.prompt)
            value = parsed(_written(behind_reasoning(text, answer.prompt), self._fence))
            right = self._validator.is_valid(value)
        except NoAnswer as nothing:
            return verdict(nothing.why)
        except RecursionError:
            return verdict(Why.TOO_LARGE)
        if right and self._against == "reference":
            right = same(value, answer.reference)
        return verdict(Why.RIGHT if right else Why.WRONG)


def _written(text: str, fence: Fence) -> str:
    """The text of the value; raises NoAnswer."""
    blocks = [] if fence == "refused" else _blocks(text)
    if not blocks and fence != "needed":
        return text
    if len(blocks) != 1:
        raise NoAnswer(Why.HEDGED if blocks else Why.NO_ANSWER)
    return blocks[0]


def _blocks(text: str) -> list[str]:
    """What stands in fences of JSON, or of nothing said; raises NoAnswer for one left open."""
    found: list[str] = []
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        if opened is None:
            opened = line
        elif len(line[1]) >= len(opened[1]) and not line[2]:
            if opened[2].lower() in ("", "json"):
                found.append(text[opened.end() : line.start()])
            opened = None
    if opened:
        raise NoAnswer(Why.NO_ANSWER)
    return found


def _read(path: str) -> dict[str, Any]:
    """Raises ConfigError for a file that holds no table."""
    place = Path(path).absolute()
    try:
        schema = parsed(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NoAnswer) as exc:
        rule = f"cannot be read as JSON ({exc})"
        raise ConfigError(AT, str(place), rule=rule, remedy="name a file of JSON") from exc
    if not isinstance(schema, dict):
        rule, remedy = "is no JSON object", "name a file that holds a schema"
        raise ConfigError(AT, str(place), rule=rule, remedy=remedy)
    return schema


def _validator(schema: dict[str, Any], at: str) -> Draft202012Validator:
    """Raises ConfigError unless it is a schema of that draft that ends and is whole."""
    if str(schema.get("$schema", DRAFT)).rstrip("#") != DRAFT:
        rule, remedy = "is no draft 2020-12", f"write it as {DRAFT} has it"
        raise ConfigError(f"{at}.$schema", schema["$schema"], rule=rule, remedy=remedy)
    try:
        Draft202012Validator.check_schema(schema)
        root = REGISTRY.resolver_with_root(DRAFT202012.create_resource(schema))
        _check_refs(schema, root, set())
        validator = Validator(schema, registry=REGISTRY)
        for probe in PROBES:
            validator.is_valid(probe)
    except (SchemaError, Unresolvable, RecursionError) as exc:
        rule, remedy = f"is no schema: {_line(exc)}", "write it in draft 2020-12, whole"
        raise ConfigError(at, None, rule=rule, remedy=remedy) from exc
    return validator


def _check_refs(contents: Any, resolver: Any, seen: set[int]) -> None:
    """Raises Unresolvable for what is neither in the schema nor in the draft's own, and
    RecursionError for what refers to itself and to nothing else.
    """
    if id(contents) in seen or not isinstance(contents, dict):
        return
    seen.add(id(contents))
    there = target = _referred(contents, resolver)
    for _ in range(LONGEST_CHAIN):
        if there is None:
            break
        there = _referred(*there)
    else:
        raise RecursionError
    if target:
        _check_refs(*target, seen)
    for inner in DRAFT202012.create_resource(contents).subresources():
        _check_refs(inner.contents, resolver.in_subresource(inner), seen)


def _referred(contents: Any, resolver: Any) -> tuple[Any, Any] | None:
    ref = contents.get("$ref", contents.get("$dynamicRef")) if isinstance(contents, dict) else None
    if not isinstance(ref, str):
        return None
    found = resolver.lookup(ref)
    return found.contents, found.resolver


def _line(exc: BaseException) -> str:
    if isinstance(exc, SchemaError):
        return f"{exc.message[:LONGEST_LINE]} at {exc.json_path}"
    if isinstance(exc, Unresolvable):
        return f"it refers to {exc.ref}, which is not in it, and nothing is fetched"
    return "it refers to itself for ever"

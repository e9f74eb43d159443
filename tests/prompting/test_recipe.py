"""The prompts of a run: one example that cannot be used costs its group, and nothing else."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from pipeline.errors import SluiceError, Unusable
from pipeline.order import index
from pipeline.protocols import Example, Text
from pipeline.run import Groups, Model, Run
from services.prompting.recipe import Recipe

RUN = Run(name="r", steps=1, seed=5, model=Model(path="none"), data="d", groups=Groups(members=2))


class Examples(list[Any]):
    """Given as they are; an exception is raised where it stands."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, Exception):
            raise found
        return found

    def digest(self) -> str:
        return ""


def encode(text: Text, *, at: str) -> bytes:
    if text == "odd":
        raise Unusable(at, text, reason="not_encoded", rule="odd", remedy="none")
    return array("i", map(ord, str(text))).tobytes()


GOOD = Example(prompt="good", reference=1)


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (Example(prompt="x" * 16), "prompt_too_long: data, example 1: its prompt has 16 tokens,"),
        (Example(prompt="odd"), "not_encoded: data, example 1 = 'odd': odd"),
        (Example(prompt="a", reference={1, object()}), "unreadable: data, example 1"),
        (Example(prompt="a", reference="y" * (1 << 20)), "too_large: data, example 1"),
        (
            Unusable("row 7", None, rule="no\nprompt", remedy="cut it"),
            "unreadable: row 7: no prompt",
        ),
    ],
)
def test_C077_what_cannot_be_used_takes_its_place_and_carries_the_reason(
    example: object, reason: str
) -> None:
    recipe = Recipe(Examples([GOOD, example, GOOD]), run=RUN, encode=encode, context=16)
    prompts = {index(p.seq, size=3, seed=5): p for p in map(recipe, range(recipe.end))}
    bad = prompts.pop(1)
    assert bad.error.startswith(reason)
    assert "\n" not in bad.error and len(bad.error) <= 500
    assert (bad.ids, bad.reference, bad.members) == (b"", b"null", 2)
    assert [p.error for p in prompts.values()] == ["", ""]


def test_C077_a_prompt_that_leaves_one_token_is_used() -> None:
    recipe = Recipe(Examples([Example(prompt="x" * 15)]), run=RUN, encode=encode, context=16)
    assert not recipe(0).error


def test_a_data_set_that_is_wrong_as_a_whole_ends_the_run() -> None:
    recipe = Recipe(Examples([SluiceError("the file was changed")]), run=RUN, encode=encode)
    with pytest.raises(SluiceError, match="the file was changed"):
        recipe(0)


def test_a_reference_travels_as_json() -> None:
    reference = {"a": [1, None, "ü"], "big": 10**30}
    recipe = Recipe(Examples([Example(prompt="a", reference=reference)]), run=RUN, encode=encode)
    assert msgspec.json.decode(recipe(0).reference) == reference

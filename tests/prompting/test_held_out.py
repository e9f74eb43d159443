"""The held-out prompts of a version: the same for every version but for what they are pinned to."""

from __future__ import annotations

from array import array

from msgspec.structs import replace

from pipeline.errors import Unusable
from pipeline.protocols import Example, Text
from pipeline.run import Evaluation, Model, Run
from services.prompting.evaluation import HeldOutRecipe
from services.prompting.recipe import Recipe

SIZE = 3
RUN = Run(
    name="run",
    steps=1,
    seed=7,
    model=Model(path="none"),
    data="jsonl",
    evaluation=Evaluation(data="jsonl", members=5),
)


class Few:
    """Three examples, of which the last cannot be used."""

    def __len__(self) -> int:
        return SIZE

    def digest(self) -> str:
        return "few"

    def __getitem__(self, index: int) -> Example:
        if index == SIZE - 1:
            raise Unusable("line 3", None, reason="unreadable", rule="is torn", remedy="mend it")
        return Example(prompt=f"p{index}", reference={"place": index}, task="t")


def encode(text: Text, *, at: str = "data") -> bytes:
    assert isinstance(text, str)
    return array("i", map(ord, text)).tobytes()


def prompts_of(version: int) -> list:
    assert RUN.evaluation is not None
    recipe = Recipe(Few(), run=RUN, encode=encode, at="evaluation.data")
    make = HeldOutRecipe(recipe, RUN, RUN.evaluation, examples=SIZE)
    assert make.size == 2 * SIZE
    return [make(version, number) for number in range(make.size)]


def test_each_example_has_its_samples_and_one_greedy_answer() -> None:
    made = prompts_of(4)
    assert [p.group for p in made] == [f"eval/4/{n}" for n in range(2 * SIZE)]
    assert [p.members for p in made] == [5] * SIZE + [1] * SIZE
    assert [p.sampling.temperature for p in made] == [1.0] * SIZE + [0.0] * SIZE
    assert {(p.pin, p.lane, p.seed) for p in made} == {(4, "eval", 7)}
    assert [p.ids for p in made[:SIZE]] == [p.ids for p in made[SIZE:]]
    assert sorted(p.reference for p in made[:SIZE]) == [
        b"null", b'{"place":0}', b'{"place":1}',
    ]  # fmt: skip
    assert [p.error for p in made if p.error] == 2 * ["unreadable: line 3: is torn; mend it"]


def test_two_versions_are_asked_the_same_with_the_same_noise() -> None:
    """The noise is also that of `sluice evaluate`, which names its groups so."""
    plain = [[replace(p, group="", pin=None) for p in prompts_of(version)] for version in (0, 300)]
    assert plain[0] == plain[1]
    for prompt in plain[0][:SIZE]:
        if not prompt.error:
            place = prompt.reference.removeprefix(b'{"place":').decode()[0]
            assert prompt.noise == f"sampled-{place}"

import inspect
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from every_objective import EVERY
from made import build, consider, group, member, rules
from torch import Tensor

from pipeline import plugins
from pipeline.errors import ConfigError
from pipeline.families import ADVANTAGES, CORRECTIONS, DIVERGENCES, LOSSES
from pipeline.protocols import Tokens
from pipeline.run import Model, Run
from pipeline.run import Objective as Settings
from services.training.objective import Objective, compose


def ranges() -> list[Any]:
    """Every part that has a range, and its table."""
    return [
        (table, name)
        for table in (LOSSES, CORRECTIONS)
        for name in table
        if {"low", "high"} <= {*inspect.signature(plugins.find(table, name, "-")).parameters}
    ]


def test_a_range_between_whose_ends_nothing_lies_is_refused_by_its_place() -> None:
    assert [name for _, name in ranges()] == ["cispo", "rollout_is", "icepop", "mask_geometric"]
    for table, name in ranges():
        for options in ({"low": 9.0}, {"low": 0.5, "high": 0.25}):
            with pytest.raises(ConfigError, match=r"^a\.key\.low = .* is above high, which is"):
                plugins.build(table, {"use": name, **options}, at="a.key")
        plugins.build(table, {"use": name, "low": 1.0, "high": 1.0}, at="a.key")


def ten_then_zero(tokens: Tokens) -> Tensor:
    """Loss 10 on tokens of sequence 0, and 0 elsewhere."""
    return 10.0 * (tokens.sequence == 0) + 0 * tokens.logp


def one(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.logp)


def one_on_the_first_sequence(tokens: Tokens) -> Tensor:
    """What a trust mask does: it zeroes a loss, and not the count."""
    return (tokens.sequence == 0).float()


@pytest.mark.parametrize("pack_tokens", [1, 100])
def test_C095_one_token_of_loss_10_and_nine_of_0_make_1(pack_tokens: int) -> None:
    members = [member([5], 1.0), member([5] * 9, 0.0)]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=pack_tokens)
    assert len(batch.packs) == (2 if pack_tokens == 1 else 1)
    loss = sum(Objective(ten_then_zero)(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(1.0)


def test_C071_what_is_outside_the_loss_mask_is_not_in_the_denominator() -> None:
    members = [member([5] * 4, 1.0), member([5] * 6, 0.0, mask=((0, 6),), finish="length")]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=100)
    loss = sum(Objective(one)(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(1.0)


def test_what_a_loss_itself_sets_to_0_stays_in_the_denominator() -> None:
    members = [member([5] * 4, 1.0), member([5] * 6, 0.0)]
    batch = build([consider(group("g", members), rules())], rules(), pack_tokens=100)
    objective = Objective(one_on_the_first_sequence)
    loss = sum(objective(p, torch.zeros(p.ids.shape)) for p in batch.packs)
    assert float(loss) == pytest.approx(0.4)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("masked", [-91.0, float("-inf"), float("nan")])
def test_C102_what_stands_outside_the_loss_never_reaches_it(name: str, masked: float) -> None:
    behaviour = [-2.0, -91.0, -2.0]
    members = [member([5, 6, 7], 1.0, logprobs=behaviour, mask=((1, 2),))]
    members.append(member([5], 0.0, logprobs=[-2.0]))
    (pack,) = build([consider(group("g", members), rules())], rules(), pack_tokens=99).packs
    logp = torch.full(pack.ids.shape, -2.0)
    logp[3] = masked  # two of the prompt, then one token inside
    there = torch.where(torch.arange(len(logp)) == 3, masked, -2.0)
    pack = pack._replace(
        behaviour=torch.where(pack.weight > 0, pack.behaviour, there), reference=there
    )
    logp.requires_grad_()
    objective = EVERY[name]
    objective = objective.told(objective.look(pack, logp.detach()))
    value = objective(pack, logp)
    value.backward()
    assert value.isfinite() and logp.grad is not None and logp.grad.isfinite().all()
    assert logp.grad.nonzero().squeeze(-1).tolist() == [2, 4, 7]


def composed(**keys: Any) -> Objective:
    settings = Settings(**keys)
    return compose(Run(name="o", steps=1, model=Model(path="-"), data="-", objective=settings))


def value_of(objective: Objective) -> float:
    """Of two tokens of advantage 1 and -1, whose gap is ln 3."""
    members = [member([5], 1.0, logprobs=[-3.0]), member([5], 0.0, logprobs=[-3.0])]
    (pack,) = build([consider(group("g", members), rules())], rules(), pack_tokens=99).packs
    pack = pack._replace(advantage=torch.where(pack.sequence == 0, 1.0, -1.0))
    logp = torch.full(pack.ids.shape, -3.0) + torch.log(torch.tensor(3.0))
    told = objective.told(objective.look(pack, logp))
    return float(told(pack, logp))


def halved(tokens: Tokens, *, by: float) -> Tensor:
    return torch.where(tokens.advantage > 0, by, 1.0)


class Largest:
    """A correction that depends on the whole step: what each token has of the largest p."""

    def __init__(self) -> None:
        self.largest = math.nan

    def look(self, tokens: Tokens) -> Tensor:
        return tokens.logp.max().reshape(1, 1)

    def told(self, rows: Tensor) -> "Largest":
        told = Largest()
        told.largest = float(rows.max())
        return told

    def __call__(self, tokens: Tokens) -> Tensor:
        return (tokens.logp - self.largest).exp()


OWN = {"use": f"{__name__}:halved", "by": 0.5}
WIDE = f"{__name__}:Largest"
PROXIMAL: dict[str, Any] = {"loss": "ppo", "anchor": "proximal"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        # r is 1, so that the loss is -A, and the weights are told apart by it
        (PROXIMAL | {"correction": "none"}, (-1 + 1) / 2),
        (PROXIMAL | {"correction": {"use": "mask_k", "bound": 0.1}}, 0.0),
        (PROXIMAL | {"correction": [{"use": "tis", "cap": 2.5}, OWN]}, (-0.5 + 1) * 2.5 / 2),
        # over the step the weights are 1.25 and 2.5
        (PROXIMAL | {"correction": [{"use": "tis", "cap": 2.5}, OWN], "normalise": True}, 1 / 3),
        # r is 3: clipped where A > 0
        ({"loss": "ppo"}, (-1.28 + 3) / 2),
        ({"loss": {"use": f"{__name__}:halved", "by": 0.5}}, (0.5 + 1) / 2),
    ],
)
def test_an_objective_is_composed_as_it_is_written(keys: dict[str, Any], expected: float) -> None:
    assert value_of(composed(**keys)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("beside", [{"correction": [WIDE, "opsm"]}, {"normalise": True}])
def test_a_correction_that_must_see_the_whole_step_stands_alone(beside: dict[str, Any]) -> None:
    keys = PROXIMAL | {"correction": WIDE}
    assert math.isfinite(value_of(composed(**keys)))
    with pytest.raises(ConfigError, match=r"sees the whole step first.*name that part alone"):
        composed(**keys | beside)


def test_a_kl_term_is_added_to_the_loss_and_not_corrected() -> None:
    """The reference is 0 here, and pi = ln 3 - 3: k2 is pi^2/2 on both tokens."""
    keys = PROXIMAL | {"correction": {"use": "mask_k", "bound": 0.1}}
    kl = {"use": "k2", "coefficient": 0.1}
    assert value_of(composed(kl=kl, **keys)) == pytest.approx(0.05 * 1.9013877**2, rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"loss": {"use": "m2po", "treshold": 0.1}}, "threshold"),
        (PROXIMAL | {"correction": ["tis", {"use": "opsm", "delta": -1.0}]}, ">= 0"),
        (PROXIMAL | {"correction": "mask_k"}, "bound"),
        (PROXIMAL | {"correction": {"use": "tis", "over": "pack"}}, "pack"),
        ({"kl": "k3"}, "coefficient"),
    ],
)
def test_an_option_that_is_none_is_refused_and_named(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        composed(**keys)


PAGE = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    return PAGE.split(f"```{language}\n")[1].split("```")[0]


def test_the_pages_example_can_be_composed() -> None:
    keys = tomllib.loads(block("toml"))["objective"]
    assert composed(**keys).anchor == "interpolated"


def test_the_pages_own_loss_can_be_used() -> None:
    found: dict[str, Any] = {}
    exec(block("python"), found)
    assert value_of(Objective(found["bounded"])) == pytest.approx(0.0)


@pytest.mark.parametrize("table", [LOSSES, CORRECTIONS, DIVERGENCES, ADVANTAGES])
def test_the_page_has_every_name(table: dict[str, str]) -> None:
    assert [name for name in table if f"| `{name}` |" not in PAGE] == []

"""Every loss, correction and divergence that the tables name, each in an objective that can be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pipeline import plugins
from pipeline.anchor import INTERPOLATED, PROXIMAL
from pipeline.anchor import LOSSES as TRAITS
from pipeline.families import CORRECTIONS, DIVERGENCES, LOSSES
from pipeline.protocols import Loss, Pack, Tokens, Wide
from pipeline.run import Spec
from services.training.corrections import Normalised
from services.training.losses import ppo
from services.training.objective import Objective

MORE_LOSSES: tuple[dict[str, Any], ...] = (
    {"use": "topr", "level": "sequence"},
    {"use": "kimi", "level": "sequence"},
)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "none": [{}],
    "tis": [
        {"level": level, "over": over}
        for level in ("token", "sequence", "geometric")
        for over in ("sequence", "segment")
    ],
    "icepop": [{}],
    "mask_geometric": [
        {"low": 0.7, "high": 1.5},
        {"low": 0.7, "high": 1.5, "over": "segment"},
    ],
    "mask_k": [
        {"kind": kind, "level": level, "bound": 0.4, "over": over}
        for kind in ("k1", "k2", "k3")
        for level in ("token", "mean", "sum", "max")
        for over in ("sequence", "segment")
    ],
    "opsm": [{"delta": 0.1}, {"delta": 0.1, "over": "segment"}],
    "decoupled": [{"cap": 1.2}, {"cap": 1.2, "above": "mask"}],
}
"""Of each correction, so that it acts on gaps of about 1."""


def losses() -> Iterator[tuple[str, Objective]]:
    specs: list[Spec] = [*LOSSES, *MORE_LOSSES]
    for spec in specs:
        for anchor in TRAITS[plugins.name_of(spec, "-")].anchors:
            given: Any = anchor
            yield (
                f"{spec} at {anchor}",
                Objective(plugins.build(LOSSES, spec, at="-"), anchor=given),
            )


def corrections() -> Iterator[tuple[str, Objective]]:
    for name in CORRECTIONS:
        for options in OPTIONS[name]:
            correction = plugins.build(CORRECTIONS, {"use": name, **options}, at="-")
            anchor: Any = INTERPOLATED if name == "decoupled" else PROXIMAL
            yield f"{name} {options}", Objective(ppo, correction, anchor)
    tis = plugins.build(CORRECTIONS, "tis", at="-")
    yield "normalised", Objective(ppo, Normalised(tis), "proximal")


def divergences() -> Iterator[tuple[str, Objective]]:
    for name in DIVERGENCES:
        kl = plugins.build(DIVERGENCES, {"use": name, "coefficient": 0.3}, at="-")
        yield name, Objective(ppo, kl=kl)


EVERY = dict((*losses(), *corrections(), *divergences()))


class Sum:
    """A loss that is all of them together, each times a number of its own.

    What is right of the sum's gradient is right of each one's, for one step instead of many.
    """

    def __init__(self, objectives: dict[str, Objective] = EVERY) -> None:
        self._objectives = objectives

    def look(self, tokens: Tokens) -> Tensor:
        """Rows [n, 4]: which objective, which part, and its own two."""
        rows = [
            torch.nn.functional.pad(part.look(self._own(tokens, one)), (2, 0)).double()
            + torch.tensor([number, place, 0, 0], dtype=torch.float64)
            for number, one in enumerate(self._objectives.values())
            for place, part in enumerate(one.wide)
        ]
        return torch.cat(rows)

    def told(self, rows: Tensor) -> Loss:
        told = {}
        for number, (name, one) in enumerate(self._objectives.items()):
            mine = rows[rows[:, 0] == number]
            own = [mine[mine[:, 1] == place, 2:] for place in range(len(one.wide))]
            told[name] = one.told(own)
        return Sum(told)

    def __call__(self, tokens: Tokens) -> Tensor:
        total = torch.zeros_like(tokens.logp)
        for number, one in enumerate(self._objectives.values()):
            own = self._own(tokens, one)
            losses = one.loss(own) * one.correction(own).detach()
            total = total + (1 + number % 7) * (losses + (one.kl(own) if one.kl else 0))
        return total

    def _own(self, tokens: Tokens, one: Objective) -> Tokens:
        anchor = one.anchored(tokens.logp.detach(), tokens.behaviour, tokens.lag)
        return tokens._replace(anchor=anchor)


assert isinstance(Sum(), Wide)


def with_turns(pack: Pack) -> Pack:
    """With what some of them look at: outcomes, turns, lags, a reference."""
    place = torch.arange(pack.ids.numel()) - torch.arange(pack.ids.numel())[
        pack.positions == 0
    ].repeat_interleave(torch.unique_consecutive(pack.sequence, return_counts=True)[1])
    return pack._replace(
        score=(pack.sequence % 3 == 0).float(),
        segment=(place > 6).long(),
        lag=pack.sequence % 4,
        reference=pack.behaviour * 0.9 - 0.1,
    )

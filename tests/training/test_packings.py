"""Every loss, correction and divergence: the same gradient, packed or padded, in one pass or more.

In float64 and without a model, so that there is no rounding to look past: a log-prob is a function
of the token before. With a model, and on two ranks, see `test_gradient_equality`.
"""

from functools import cache

import pytest
import torch
from every_objective import EVERY, with_turns
from made import VOCABULARY, build, consider, rules
from rank_cases import LENGTH, equal, long_tail
from torch import Tensor

from pipeline.protocols import Pack
from services.training.objective import Objective

PACKINGS = {
    "8 sequences in 8, 2 and 1": (lambda: equal(8), (1, 4 * LENGTH, 8 * LENGTH), [8, 2, 1]),
    "a long tail in 10, 4 and 1": (long_tail, (1, 30, 999), [10, 4, 1]),
}


@cache
def table() -> Tensor:
    """Logits, one row for each id that may come before."""
    made = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))
    return made.double()


def logprobs(logits: Tensor, pack: Pack) -> Tensor:
    found = logits.log_softmax(-1)[pack.ids.roll(1), pack.ids]
    return torch.where(pack.positions > 0, found, 0.0)


@cache
def packs_of(packing: str, pack_tokens: int) -> list[Pack]:
    """With a behaviour that is off by up to 0.6: on one side in some sequences, in some not."""
    judged = [consider(g, rules()) for g in PACKINGS[packing][0]()]
    found = []
    for pack in build(judged, rules(), pack_tokens=pack_tokens).packs:
        off = torch.sin(7.0 * pack.ids + pack.positions)
        off = torch.where(pack.sequence % 2 == 0, off, off.abs()).double()
        off = off * 0.3 * (pack.sequence % 3)
        behaviour = logprobs(table(), pack) + off
        found.append(with_turns(pack._replace(behaviour=behaviour)))
    return found


def gradient_of(objective: Objective, packs: list[Pack]) -> Tensor:
    logits = table().clone().requires_grad_()
    looks = [objective.look(pack, logprobs(logits, pack).detach()) for pack in packs]
    objective = objective.told([torch.cat(rows) for rows in zip(*looks, strict=True)])
    for pack in packs:
        objective(pack, logprobs(logits, pack)).backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", EVERY)
def test_C099_a_gradient_does_not_depend_on_the_packs(name: str, packing: str) -> None:
    _, sizes, numbers = PACKINGS[packing]
    assert [len(packs_of(packing, size)) for size in sizes] == numbers
    padded, *packed = [gradient_of(EVERY[name], packs_of(packing, size)) for size in sizes]
    assert padded.abs().max() > 1e-4
    for other in packed:
        assert (other - padded).abs().max() < 1e-10 * padded.abs().max()


def test_parts_that_see_the_whole_step_would_be_seen_to_see_a_pack_only() -> None:
    """What the tests above rest on: m2po by pack is another gradient."""
    objective = EVERY["m2po at behaviour"]
    packs = packs_of("a long tail in 10, 4 and 1", 1)
    by_step = gradient_of(objective, packs)
    by_pack = sum(gradient_of(objective, [pack]) for pack in packs)
    assert (by_step - by_pack).abs().max() > 1e-3 * by_step.abs().max()

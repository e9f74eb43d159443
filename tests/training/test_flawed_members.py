"""One member that no trainer could step on costs itself: it has a fate of its name, and the step is
as if it were not there."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
from made import VOCABULARY, Batch, build, consider, group, member, rules, tiny_model
from msgspec.structs import replace

from pipeline.ledger import Sum
from pipeline.messages import Completion, Kept, Span
from services.training.backends.torch import TorchBackend
from services.training.losses import cispo
from services.training.objective import Objective

TOKENS = (5, 6, 7)


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


FLAWS: dict[str, Callable[[Completion], Completion]] = {
    "token_unknown": lambda c: replace(c, ids=ints(5, VOCABULARY, 7)),
    "kept_token_unknown": lambda c: replace(
        c, kept=Kept(counts=ints(1, 1, 2), ids=ints(*TOKENS, VOCABULARY))
    ),
    "kept_length": lambda c: replace(c, kept=Kept(counts=ints(1, 1), ids=ints(5, 6))),
    "nonfinite_logprob": lambda c: replace(c, logprobs=floats(-1, float("nan"), -1)),
    "positive_logprob": lambda c: replace(c, logprobs=floats(-1, 50.0, -1)),
    "logprob_length": lambda c: replace(c, logprobs=floats(-1, -1)),
    "span_length": lambda c: replace(c, spans=(Span(5, 2, "boot"),)),
    "mask_range": lambda c: replace(c, mask=((2, 9),)),
    "orphan_version": lambda c: replace(c, spans=(Span(77, 3, "boot"),)),
    "future_version": lambda c: replace(c, spans=(Span(9, 3, "boot"),)),
    "empty_completion": lambda c: replace(c, ids=b"", logprobs=b"", spans=()),
}


def batch_of(flaw: str | None, reward: float = 0.0) -> Batch:
    """Three members, and a fourth with the flaw, or nothing inside the loss."""
    members = [member(TOKENS, reward) for reward in (1.0, 0.0, 1.0)]
    last = member(TOKENS, reward, mask=((0, 3),))
    if flaw:
        last = replace(member(TOKENS, reward), completion=FLAWS[flaw](member(TOKENS, 0).completion))
    made = group("g", [*members, last])
    return build([consider(made, rules(), vocabulary=VOCABULARY)], rules(), pack_tokens=99)


def gradient_of(batch: Batch) -> torch.Tensor:
    """Of one step, by the real model."""
    backend, objective = TorchBackend(tiny_model()), Objective(cispo)
    for pack in batch.packs:
        backend.backward(pack, lambda logp, pack=pack: objective(pack, logp))
    return torch.cat([p.grad.flatten() for p in backend.model.parameters()])


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flawed_member_has_the_fate_of_its_flaw_and_its_siblings_are_trained(flaw: str) -> None:
    batch = batch_of(flaw)
    tokens = 0 if flaw == "empty_completion" else 3
    assert batch.fates["g"] == {"trained": Sum(3, 9), flaw: Sum(1, tokens)}
    assert [(one.reason, one.tokens) for one in batch.refused] == [(flaw, tokens)]
    assert torch.equal(gradient_of(batch), gradient_of(batch_of(None)))


@pytest.mark.parametrize("bad", [VOCABULARY, -1])
def test_a_prompt_that_the_model_cannot_read_refuses_its_whole_group(bad: int) -> None:
    made = group("g", [member(TOKENS, 1.0), member(TOKENS, 0.0)], prompt=[3, bad])
    judged = consider(made, rules(), vocabulary=VOCABULARY)
    assert judged.verdict == "unusable"
    assert judged.fates == {"prompt_token_unknown": Sum(2, 6)}

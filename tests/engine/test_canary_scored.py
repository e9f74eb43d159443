"""Log-probs of given ids, told between two steps: right, and nothing in flight notices."""

from __future__ import annotations

import pytest
import torch
from engine_models import CONFIGS, CONTEXT, VOCABULARY, plain_logprobs, tiny
from engine_work import Make, drain, flip_to, work

from pipeline.messages import Canary, Manifest
from services.inference.engines.fake import FakeEngine
from services.inference.engines.hf.engine import HfEngine
from services.inference.engines.members import Refused

IDS = [3, 30, 7, 7, 19, 0, 4, 11, 25, 2]


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_those_of_one_plain_forward_pass(name: str) -> None:
    engine = HfEngine(tiny(name), boot="b", end_ids=frozenset(), slots=3, max_length=5)
    flip_to(engine, 0)
    wanted = plain_logprobs(tiny(name), IDS[:1], IDS[1:])
    assert engine.logprobs(IDS) == pytest.approx(wanted.tolist(), abs=1e-5)


def test_they_are_of_what_serves_and_of_a_pin_those_of_its_version() -> None:
    engine = HfEngine(tiny(seed=0), boot="b", end_ids=frozenset())
    flip_to(engine, 0)
    pinned, before = engine.pin(), engine.logprobs(IDS)
    flip_to(engine, 1, tiny(seed=1))
    wanted = plain_logprobs(tiny(seed=1), IDS[:1], IDS[1:])
    assert engine.logprobs(IDS) == pytest.approx(wanted.tolist(), abs=1e-5)
    assert pinned.logprobs(IDS) == before
    assert engine.revert() == 0 and engine.logprobs(IDS) == before


@pytest.mark.parametrize("fixed", [False, True])
def test_whoever_is_in_flight_has_the_same_bits(fixed: bool) -> None:
    def answers(ask: bool) -> dict:
        engine = HfEngine(
            tiny("qwen2_grouped_heads"),
            boot="b",
            end_ids=frozenset({0}),
            slots=6,
            max_length=64,
            fixed_shapes=fixed,
        )
        flip_to(engine, 0)
        for group in range(3):
            engine.add(work(f"g{group}", prompt=range(1, 4 + group), top_k=5 * group))
        done = []
        while engine.busy:
            done += engine.step()
            if ask:
                engine.logprobs(IDS)
        return {(c.group, c.member): (c.ids, c.logprobs, c.spans) for c in done}

    assert answers(True) == answers(False)


def test_every_engine_takes_no_note_of_it(make: Make) -> None:
    asked, other = make(), make()
    for engine in (asked, other):
        engine.add(work())
        engine.step()
    for _ in range(3):
        told = asked.logprobs(IDS)
        assert len(told) == len(IDS) - 1 and all(value <= 0 for value in told)
        assert told == asked.logprobs(IDS)
    assert asked.load == other.load
    assert {c.ids for c in drain(asked).values()} == {c.ids for c in drain(other).values()}


@pytest.mark.parametrize(
    "ids", [[1], [1, VOCABULARY], [-1, 1], [1] * (CONTEXT + 1)], ids=["one", "new", "low", "long"]
)
def test_ids_that_cannot_be_scored_are_refused(make: Make, ids: list[int]) -> None:
    with pytest.raises(Refused, match="the canary has"):
        make().logprobs(ids)


def test_a_fake_engine_claims_what_was_announced() -> None:
    canary = Canary(
        ids=torch.tensor([5, 99, 7], dtype=torch.int32).numpy().tobytes(),
        logprobs=torch.tensor([-1.5, -0.25]).numpy().tobytes(),
    )
    engine = FakeEngine(boot="b", vocabulary=20)
    engine.stage(
        Manifest(version=0, step=0, epoch=1, fingerprint="f", location="", canary=canary),
        None,  # type: ignore[arg-type]
    )
    assert engine.flip()
    assert engine.logprobs([5, 99, 7]) == [-1.5, -0.25]
